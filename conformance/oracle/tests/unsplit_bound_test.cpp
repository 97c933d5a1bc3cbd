#include "conformance/oracle/unsplit_bound.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace equigrad::conformance::oracle {
namespace {

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

TEST(UnsplitBound, ARoomIsTheLargestErrorTimesWhatASampleOfItsSizeNeeds) {
  const auto truth = at::zeros({100}, at::kDouble);
  EXPECT_EQ(room_of(truth + 0.5, truth), 0.5 * kLeastFactor) << "10^(9/100) is less";
  EXPECT_EQ(room_of(doubles({0.5, 0.25, 0.01}), at::zeros({3})), 0.5 * std::pow(kChance, -0.5))
      << "0.01 is not comparable";
  EXPECT_EQ(room_of(doubles({0.5}), at::zeros({1})), 0.5 * std::pow(kChance, -1.0))
      << "nothing is known";
  EXPECT_EQ(room_of(truth, truth), 0) << "nothing was rounded";
  EXPECT_EQ(room_of(at::zeros({0}), at::zeros({0})), 0);
}

TEST(UnsplitBound, AModelThatIsSharedMayBeOffByItsRoomAndItsReduction) {
  Reduction alone;
  const auto truth = doubles({1, -2, 4}), sums = at::zeros({3}, at::kDouble);
  EXPECT_TRUE(check_unsplit(truth + 0.5, truth, 0.5, sums, alone).held());
  EXPECT_FALSE(check_unsplit(truth + 0.51, truth, 0.5, sums, alone).held());
  EXPECT_FALSE(check_unsplit(truth / 2, truth, 0.5, sums, alone).held()) << "1/tensor";
  EXPECT_TRUE(check_unsplit(truth, truth, 0, sums, alone).held());
  Reduction two;
  two.world = 2;
  const auto added = reduction_bound(two).relative * 8;
  const auto eights = at::full({3}, 8, at::kDouble);
  EXPECT_TRUE(check_unsplit(truth + 0.9 * added, truth, 0, eights, two).held());
  EXPECT_FALSE(check_unsplit(truth + 1.1 * added, truth, 0, eights, two).held());
}

TEST(UnsplitBound, ClippingScalesBothSides) {
  Reduction clipped;
  clipped.clip_factor = 0.25;
  const auto truth = doubles({1, -2, 4}), sums = at::zeros({3}, at::kDouble);
  EXPECT_TRUE(check_unsplit(truth / 4 + 0.12, truth, 0.5, sums, clipped).held());
  EXPECT_FALSE(check_unsplit(truth / 4 + 0.13, truth, 0.5, sums, clipped).held());
  EXPECT_FALSE(check_unsplit(truth, truth, 0.5, sums, clipped).held());
}

TEST(UnsplitBound, WhatIsNotFiniteHoldsNothing) {
  const auto truth = doubles({1, 2}), sums = at::zeros({2}, at::kDouble);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(room_of(doubles({1, infinity}), truth), infinity);
  EXPECT_FALSE(check_unsplit(truth, truth, infinity, sums, {}).held());
  EXPECT_FALSE(check_unsplit(doubles({1, infinity}), truth, 1, sums, {}).held());
  EXPECT_FALSE(check_unsplit(at::zeros({0}), at::zeros({0}), 1, at::zeros({0}), {}).held());
}

TEST(UnsplitBound, SizesMustAgree) {
  EXPECT_THROW(room_of(doubles({1}), doubles({1, 2})), std::runtime_error);
  EXPECT_THROW(check_unsplit(doubles({1}), doubles({1, 2}), 1, doubles({1}), {}),
               std::runtime_error);
}

}  // namespace
}  // namespace equigrad::conformance::oracle
