// Threads: the same work on one thread and on several, with the same bits.
//
// Invariants: torch's number of threads is afterwards what it was. A comparison fails too where the
// work did not run on threads though it is large enough, or ran on some though it is not: a loop
// that is never parallel proves nothing.
// Units: numel counts elements.   Errors: none.
// Depends on: ATen, bits_matcher.hpp, engine/kernels/parallel.hpp.
#pragma once

#include <ATen/Parallel.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/testing/bits_matcher.hpp"
#include "engine/kernels/parallel.hpp"

namespace equigrad::conformance {

class ThreadsGuard {
 public:
  explicit ThreadsGuard(int threads) : before_(at::get_num_threads()) {
    at::set_num_threads(threads);
  }
  ~ThreadsGuard() { at::set_num_threads(before_); }
  ThreadsGuard(const ThreadsGuard&) = delete;
  ThreadsGuard& operator=(const ThreadsGuard&) = delete;

 private:
  int before_;
};

inline constexpr std::array kSeveralThreads = {2, 3, 7, 16};

// Next to every number of elements where there is a part more, and one that all threads have a part
// of; odd, so that the last part is no whole number of anything.
inline constexpr int64_t kManyNumel = (int64_t{1} << 20) + 37;
inline std::vector<int64_t> numels_for_threads() {
  constexpr int64_t kGrain = equigrad::kernels::kGrainNumel;
  static_assert(kManyNumel > 17 * kGrain);
  return {2 * kGrain - 1, 2 * kGrain,        2 * kGrain + 1,  3 * kGrain - 1,
          3 * kGrain + 1, 7 * kGrain + 2049, 16 * kGrain + 1, kManyNumel};
}

// work(threads) gives tensors, by so many loops over `numel` elements each within a ThreadsGuard.
template <class Work>
void expect_the_bits_of_one_thread(const std::string& what, int64_t numel, int64_t loops,
                                   const Work& work) {
  const auto on = [&](int threads, int64_t& on_others) {
    const auto before = equigrad::kernels::parts_on_other_threads();
    const std::vector<at::Tensor> made = work(threads);
    on_others = equigrad::kernels::parts_on_other_threads() - before;
    return made;
  };
  int64_t on_others = 0;
  const auto want = on(1, on_others);
  EXPECT_EQ(on_others, 0) << what;
  for (const int threads : kSeveralThreads) {
    const auto which =
        what + ", " + std::to_string(numel) + ", " + std::to_string(threads) + " threads";
    const auto got = on(threads, on_others);
    if (numel < 2 * equigrad::kernels::kGrainNumel)
      EXPECT_EQ(on_others, 0) << which;
    else if (numel == kManyNumel)
      EXPECT_EQ(on_others, loops * (threads - 1)) << which;
    else
      EXPECT_GE(on_others, loops) << which;
    ASSERT_EQ(got.size(), want.size()) << which;
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_THAT(got[i], oracle::HasTheBitsOf(want[i])) << which << ", result " << i;
  }
}

}  // namespace equigrad::conformance
