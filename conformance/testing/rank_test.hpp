// RankTest: GoogleTest expectations inside ranks, gathered in the test that forked them.
//
//   EXPECT_EQ(on_ranks(4, [](ranks::RankContext& context) { EXPECT_EQ(context.world_size(), 4); }),
//   "");
//
// Invariants: an expectation that fails on any rank fails the caller; its text is on stdout.
// Units: none.   Errors: none thrown; the result holds every failed rank's reason.
// Depends on: pool.hpp, GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "conformance/ranks/pool.hpp"

namespace equigrad::conformance::ranks {

inline int failed_expectations() {
  const auto& result = *::testing::UnitTest::GetInstance()->current_test_info()->result();
  int failed = 0;
  for (int i = 0; i < result.total_part_count(); ++i)
    failed += result.GetTestPartResult(i).failed();
  return failed;
}

template <class Fn>
std::string on_ranks(int world, Fn fn, Options options = {}) {
  const auto checked = [fn](RankContext& context) {
    const int before = failed_expectations();  // of the caller, which a fork takes along
    fn(context);
    if (failed_expectations() != before)
      throw std::runtime_error("an expectation failed on this rank (its text is above)");
  };
  return failures(run_ranks(world, checked, options));
}

}  // namespace equigrad::conformance::ranks
