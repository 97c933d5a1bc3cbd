#include "perf/race/gate.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <equigrad_build_info.hpp>
#include <fstream>

#include "perf/race/scratch.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;
using testing::IsEmpty;
using testing::Not;

std::string worker() {
  const char* path = std::getenv("EQUIGRAD_PERF_WORKER");
  return path != nullptr ? path : std::string(build_info::binary_directory()) + "/perf_worker";
}

class Gate : public testing::Test {
 protected:
  const std::string& scratch() const { return folder_.path(); }

 private:
  Scratch folder_;
};

json baseline() {
  std::ifstream file(std::string(build_info::source_directory()) + "/perf/baselines/counts.json");
  return json::parse(file);
}

TEST_F(Gate, CountsAreThoseOfTheBaseline) {
  ASSERT_EQ(baseline().at("torch"), build_info::torch_version());
  EXPECT_THAT(differences(baseline().at("counts"), count_steps(worker(), scratch())), IsEmpty());
}

TEST_F(Gate, SeesOneMoreCollective) {
  EXPECT_THAT(
      differences(baseline().at("counts"), count_steps(worker(), scratch(), {{"one_more", true}})),
      Not(IsEmpty()));
}

TEST_F(Gate, SeesOneMoreCopy) {
  const auto found =
      differences(baseline().at("counts"), count_steps(worker(), scratch(), {{"copies", true}}));
  ASSERT_THAT(found, Not(IsEmpty()));
  EXPECT_THAT(found.front(), testing::HasSubstr("alloca"));
}

TEST_F(Gate, NothingGrowsAtAnyStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto report = find_leaks(worker(), scratch(), stage);
    EXPECT_FALSE(report.leaks()) << "stage " << stage << ": " << report.grown_bytes << " bytes in "
                                 << report.grown_count << " blocks, ledger " << report.ledger_bytes;
  }
}

TEST_F(Gate, SeesALeakOfOneKibibyteAStep) {
  const auto report = find_leaks(worker(), scratch(), 2, {{"leak_bytes", 1024}});
  EXPECT_TRUE(report.leaks());
  EXPECT_EQ(report.grown_bytes, report.steps * 1024);
}

TEST(Differences, NamesEachPlace) {
  const json expected = {{"a", {{"x", 1}, {"y", 2}}}, {"b", 3}};
  const json got = {{"a", {{"x", 1}, {"y", 5}, {"z", 1}}}};
  EXPECT_THAT(differences(expected, got),
              testing::ElementsAre("a: y: expected 2, got 5", "a: z: expected nothing, got 1",
                                   "b: expected 3, got null"));
  EXPECT_THAT(differences(expected, expected), IsEmpty());
}

}  // namespace
}  // namespace equigrad::perf
