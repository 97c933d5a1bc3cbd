// Memory that was freed stays with the process, unless its user has said otherwise.
#include "engine/memory/malloc_policy.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "conformance/testing/rank_test.hpp"

namespace equigrad {
namespace {

using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

constexpr std::size_t kBlockBytes = std::size_t{48} << 20;

std::size_t resident_bytes() {
  std::size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// What of a block that was written and freed this process still has.
std::size_t left_of_a_block() {
  const std::size_t before = resident_bytes();
  void* volatile block = std::malloc(kBlockBytes);
  std::memset(block, 1, kBlockBytes);
  EXPECT_GE(resident_bytes() - before, kBlockBytes / 2);
  std::free(block);
  const std::size_t after = resident_bytes();
  return after > before ? after - before : 0;
}

TEST(KeptMemory, AFreedBlockStaysForTheNextStep) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       for (const char* name :
                            {"GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_",
                             "MALLOC_TOP_PAD_", "EQUIGRAD_KEEP_MEMORY"})
                         unsetenv(name);
                       EXPECT_LT(left_of_a_block(), kBlockBytes / 2) << "what malloc does itself";
                       EXPECT_TRUE(keep_freed_memory());
                       EXPECT_GT(left_of_a_block(), kBlockBytes / 2);
                     }),
            "");
}

TEST(KeptMemory, NothingChangesWhereTheUserHasSaidHow) {
  for (const auto& [name, value] : {std::pair{"GLIBC_TUNABLES", "glibc.malloc.check=0"},
                                    {"MALLOC_TRIM_THRESHOLD_", "131072"},
                                    {"MALLOC_MMAP_THRESHOLD_", "131072"},
                                    {"MALLOC_TOP_PAD_", "0"},
                                    {"EQUIGRAD_KEEP_MEMORY", "0"}}) {
    EXPECT_EQ(on_ranks(1,
                       [name = name, value = value](RankContext&) {
                         setenv(name, value, 1);
                         EXPECT_FALSE(keep_freed_memory()) << name;
                         EXPECT_LT(left_of_a_block(), kBlockBytes / 2) << name;
                       }),
              "");
  }
}

}  // namespace
}  // namespace equigrad
