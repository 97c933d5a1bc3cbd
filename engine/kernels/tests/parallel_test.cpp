// Every element is in one part, parts run on the threads that torch has, and exceptions, threads of
// the caller's own and forks are what the header says.
#include "engine/kernels/parallel.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/testing/threads.hpp"

namespace equigrad::kernels {
namespace {

using conformance::kManyNumel;
using conformance::kSeveralThreads;
using conformance::numels_for_threads;
using conformance::ThreadsGuard;

struct Seen {
  std::vector<std::pair<int64_t, int64_t>> parts;  // sorted
  std::set<std::thread::id> threads;
};

Seen parts_of(int64_t numel) {
  Seen seen;
  std::mutex adding;
  parallel_for(numel, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(adding);
    seen.parts.emplace_back(begin, end);
    seen.threads.insert(std::this_thread::get_id());
  });
  std::sort(seen.parts.begin(), seen.parts.end());
  return seen;
}

// What a child that was forked here sees in a loop on three threads: the number of them, 0 if it
// did not end.
int threads_of_a_child() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    at::set_num_threads(3);
    _exit(static_cast<int>(parts_of(kManyNumel).threads.size()));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

// The first test: what it forks first has a parent without threads.
TEST(ParallelFor, AChildHasThreadsOfItsOwnUnlessItsParentHadSome) {
  ASSERT_EQ(parts_on_other_threads(), 0) << "run it before the others";
  EXPECT_EQ(threads_of_a_child(), 3);
  const ThreadsGuard guard(3);
  EXPECT_EQ(parts_of(kManyNumel).threads.size(), 3u);
  EXPECT_EQ(threads_of_a_child(), 1);
  EXPECT_EQ(parts_of(kManyNumel).threads.size(), 3u);
}

TEST(ParallelFor, EveryElementIsInOnePartAndPartsAreOnThreads) {
  auto numels = numels_for_threads();
  for (const int64_t numel : {0, 1, 4097}) numels.push_back(numel);
  for (const int64_t numel : numels) {
    for (const int threads : {1, 2, 3, 7, 16}) {
      const auto what = std::to_string(numel) + " on " + std::to_string(threads);
      const ThreadsGuard guard(threads);
      const auto before = parts_on_other_threads();
      const auto seen = parts_of(numel);
      int64_t next = 0;
      for (const auto& [begin, end] : seen.parts) {
        EXPECT_EQ(begin, next) << what;
        next = end;
      }
      EXPECT_EQ(next, numel) << what;
      EXPECT_EQ(seen.threads.size(), seen.parts.size()) << what;
      EXPECT_EQ(parts_on_other_threads() - before, static_cast<int64_t>(seen.parts.size()) - 1);
      const auto most = std::max<int64_t>(1, std::min<int64_t>(threads, numel / kGrainNumel));
      EXPECT_LE(static_cast<int64_t>(seen.parts.size()), most) << what;
      EXPECT_GE(static_cast<int64_t>(seen.parts.size()), std::min<int64_t>(most, 2)) << what;
      if (numel == kManyNumel) EXPECT_EQ(static_cast<int64_t>(seen.parts.size()), threads);
    }
  }
}

TEST(ParallelFor, AnExceptionOfAnyPartReachesTheCaller) {
  const ThreadsGuard guard(3);
  for (const int64_t bad : {int64_t{0}, kManyNumel / 2, kManyNumel - 1}) {
    std::string text;
    try {
      parallel_for(kManyNumel, [&](int64_t begin, int64_t end) {
        if (begin <= bad && bad < end) throw std::runtime_error(std::to_string(bad));
      });
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    EXPECT_EQ(text, std::to_string(bad));
    EXPECT_FALSE(at::in_parallel_region());
    EXPECT_EQ(parts_of(kManyNumel).threads.size(), 3u) << "afterwards";
  }
}

TEST(ParallelFor, ALoopInALoopIsOnePart) {
  const ThreadsGuard guard(3);
  std::mutex adding;
  std::vector<std::size_t> inner;
  const auto count = [&](int64_t, int64_t) {
    const auto parts = parts_of(kManyNumel).parts.size();
    const std::lock_guard lock(adding);
    inner.push_back(parts);
  };
  parallel_for(kManyNumel, count);
  EXPECT_THAT(inner, testing::ElementsAre(1, 1, 1));
}

TEST(ParallelFor, IsParallelOnAnyThread) {
  const ThreadsGuard guard(3);
  for (int times = 0; times < 3; ++times) {
    Seen seen;
    std::thread([&] { seen = parts_of(kManyNumel); }).join();
    EXPECT_EQ(seen.threads.size(), 3u);
    EXPECT_EQ(seen.threads.count(std::this_thread::get_id()), 0u);
  }
}

TEST(ParallelFor, LeavesTheCallersStateAlone) {
  const ThreadsGuard guard(3);
  for (const bool enabled : {true, false}) {
    const at::AutoGradMode mode(enabled);
    at::manual_seed(11);
    const auto want = at::rand({8});
    at::manual_seed(11);
    EXPECT_EQ(parts_of(kManyNumel).parts.size(), 3u);
    EXPECT_THAT(at::rand({8}), conformance::oracle::HasTheBitsOf(want));
    EXPECT_EQ(at::GradMode::is_enabled(), enabled);
    EXPECT_EQ(at::get_num_threads(), 3);
    EXPECT_EQ(at::get_thread_num(), 0);
    EXPECT_FALSE(at::in_parallel_region());
  }
}

// Two of them have a pool each, whose threads spin while the other's work.
TEST(ParallelFor, TheProcessHasOneLibraryOfOpenMp) {
  const ThreadsGuard guard(2);
  EXPECT_EQ(parts_of(kManyNumel).threads.size(), 2u);
  std::set<std::string> libraries;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    for (const char* name : {"/libgomp", "/libomp", "/libiomp"})
      if (line.find(name) != std::string::npos) libraries.insert(line.substr(line.find('/')));
  EXPECT_THAT(libraries, testing::SizeIs(1));
}

}  // namespace
}  // namespace equigrad::kernels
