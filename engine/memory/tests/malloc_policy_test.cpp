// Memory that was freed stays with the process, unless its user has said otherwise.
#include "engine/memory/malloc_policy.hpp"

#include <dlfcn.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "conformance/testing/rank_test.hpp"

namespace {
bool refuses_large_mmap_threshold = false;
}

// The C library's own, unless the test asks for one that refuses a threshold of more than half a
// heap for mmap, as man 3 mallopt allows.
extern "C" int mallopt(int what, int value) noexcept {
  if (refuses_large_mmap_threshold && what == M_MMAP_THRESHOLD && value > (32 << 20)) return 0;
  static const auto next = reinterpret_cast<int (*)(int, int)>(dlsym(RTLD_NEXT, "mallopt"));
  return next(what, value);
}

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

// The same of blocks that malloc takes from its heap, and trims when they are free.
std::size_t left_of_many_blocks() {
  constexpr std::size_t kSmallBytes = std::size_t{64} << 10;
  std::vector<void*> blocks(kBlockBytes / kSmallBytes);
  const std::size_t before = resident_bytes();
  for (void*& block : blocks) {
    block = std::malloc(kSmallBytes);
    std::memset(block, 1, kSmallBytes);
  }
  EXPECT_GE(resident_bytes() - before, kBlockBytes / 2);
  while (!blocks.empty()) {
    std::free(blocks.back());
    blocks.pop_back();
  }
  const std::size_t after = resident_bytes();
  return after > before ? after - before : 0;
}

const std::vector<const char*> kWords = {"GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_",
                                         "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_",
                                         "EQUIGRAD_KEEP_MEMORY"};

TEST(KeptMemory, AMallocThatRefusesOneThresholdKeepsTheOtherAsItWas) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       for (const char* name : kWords) unsetenv(name);
                       refuses_large_mmap_threshold = true;
                       EXPECT_LT(left_of_many_blocks(), kBlockBytes / 2) << "what malloc does";
                       EXPECT_FALSE(keep_freed_memory());
                       EXPECT_LT(left_of_many_blocks(), kBlockBytes / 2);
                       EXPECT_LT(left_of_a_block(), kBlockBytes / 2);
                     }),
            "");
}

TEST(KeptMemory, AFreedBlockStaysForTheNextStep) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       for (const char* name : kWords) unsetenv(name);
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
