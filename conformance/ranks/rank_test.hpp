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

template <class Fn>
std::string on_ranks(int world, Fn fn) {
  return failures(run_ranks(world, [fn](RankContext& context) {
    fn(context);
    if (::testing::Test::HasFailure())
      throw std::runtime_error("an expectation failed on this rank (its text is above)");
  }));
}

}  // namespace equigrad::conformance::ranks
