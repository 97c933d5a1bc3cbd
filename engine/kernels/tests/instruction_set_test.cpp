// A loop runs on every instruction set that the processor says it has.
#include "engine/kernels/instruction_set.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "conformance/testing/numbers.hpp"

namespace equigrad::kernels {
namespace {

// What the operating system says; empty where it says nothing.
std::set<std::string> flags_of_the_processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line);
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

TEST(InstructionSet, IsTheBestThatTheProcessorHas) {
  const auto flags = flags_of_the_processor();
  auto want = InstructionSet::Base;
  if (flags.contains("avx2")) want = InstructionSet::Avx2;
  bool wide = true;
  for (const std::string flag : {"avx512f", "avx512bw", "avx512dq", "avx512vl"})
    wide = wide && flags.contains(flag);
  if (wide) want = InstructionSet::Avx512;
  EXPECT_EQ(instruction_set(), want);
}

TEST(InstructionSet, ALoopRunsOnceOnEach) {
  for (const auto set : conformance::kernels::instruction_sets()) {
    int runs = 0;
    int* counted = &runs;
    run_on(
        set, [=]() __attribute__((always_inline)) { ++*counted; });
    EXPECT_EQ(runs, 1) << conformance::kernels::name_of(set);
  }
}

}  // namespace
}  // namespace equigrad::kernels
