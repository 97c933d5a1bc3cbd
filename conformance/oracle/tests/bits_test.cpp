#include "conformance/oracle/bits.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "conformance/testing/bits_matcher.hpp"

namespace equigrad::conformance::oracle {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor floats(std::vector<float> values) { return at::tensor(values, at::kFloat); }

TEST(Bits, EqualTensorsAreEqual) {
  const auto report = compare(floats({1, 2, 3}), floats({1, 2, 3}));
  EXPECT_TRUE(report.equal());
  EXPECT_EQ(report.compared, 3);
  EXPECT_EQ(report.worst_index, -1);
}

TEST(Bits, OneBitIsADifference) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const auto want = floats({1, 2, 3}).to(dtype);
    auto got = want.clone();
    got[1] = 2 + ulp_of(2, dtype);
    const auto report = compare(got, want);
    EXPECT_EQ(report.differing, 1) << dtype;
    EXPECT_EQ(report.worst_index, 1) << dtype;
    EXPECT_EQ(report.worst_ulp, 1) << dtype;
  }
}

TEST(Bits, BothZerosAreOneValue) {
  EXPECT_TRUE(compare(floats({0.0f, -0.0f, 1}), floats({-0.0f, 0.0f, 1})).equal());
}

TEST(Bits, TheSmallestNumberIsNotZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const auto report = compare(floats({tiny, 0}), floats({-0.0f, -tiny}));
  EXPECT_EQ(report.differing, 2);
  EXPECT_EQ(report.worst_ulp, 1);
}

TEST(Bits, DistanceCountsAcrossZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(ulp_distance(tiny, -tiny, at::kFloat), 2);
  EXPECT_EQ(ulp_distance(1, 2, at::kFloat), 1 << 23);
  EXPECT_EQ(ulp_distance(1, 2, at::kBFloat16), 1 << 7);
  EXPECT_EQ(ulp_distance(1, 1 + 0x1p-52, at::kDouble), 1);
}

TEST(Bits, UlpOfIsTheGapToTheNextNumber) {
  EXPECT_EQ(ulp_of(1, at::kFloat), 0x1p-23);
  EXPECT_EQ(ulp_of(0x1.fffffep0, at::kFloat), 0x1p-23);
  EXPECT_EQ(ulp_of(-2, at::kFloat), 0x1p-22);
  EXPECT_EQ(ulp_of(0, at::kFloat), 0x1p-149);
  EXPECT_EQ(ulp_of(0x1p-130, at::kFloat), 0x1p-149);
  EXPECT_EQ(ulp_of(1, at::kBFloat16), 0x1p-7);
  EXPECT_EQ(ulp_of(0, at::kBFloat16), 0x1p-133);
}

TEST(Bits, NanEqualsOnlyTheSameNan) {
  EXPECT_TRUE(compare(floats({kNan}), floats({kNan})).equal());
  EXPECT_EQ(compare(floats({kNan}), floats({-kNan})).differing, 1);
}

TEST(Bits, NotFiniteIsTheWorstWhereverItStands) {
  const auto report = compare(floats({1e30f, kNan, 5}), floats({-1e30f, 3, 5}));
  EXPECT_EQ(report.differing, 2);
  EXPECT_EQ(report.not_finite, 1);
  EXPECT_EQ(report.worst_index, 1);
  EXPECT_EQ(compare(floats({kInfinity, 1}), floats({1, -1})).worst_index, 0);
  EXPECT_EQ(compare(floats({-1, kInfinity}), floats({1, 1})).worst_index, 1);
}

TEST(Bits, OtherDtypeOrShapeIsAFinding) {
  EXPECT_EQ(compare(floats({1}), at::tensor({1.0}, at::kDouble)).mismatch,
            "dtype: got Float, want Double");
  EXPECT_EQ(compare(floats({1, 2}), floats({1})).mismatch, "shape: got [2], want [1]");
  EXPECT_FALSE(compare(floats({1, 2}), floats({1, 2}).reshape({1, 2})).equal());
  EXPECT_FALSE(compare(at::Tensor(), floats({1})).equal());
  EXPECT_FALSE(compare(floats({1}), at::Tensor()).equal());
}

TEST(Bits, StridedViewsAreReadInOrder) {
  const auto matrix = floats({1, 2, 3, 4, 5, 6}).reshape({2, 3});
  EXPECT_TRUE(compare(matrix.t(), matrix.t().contiguous()).equal());
  EXPECT_EQ(compare(matrix.t().reshape({2, 3}), matrix).differing, 4);
}

TEST(Bits, IntegersCompareByValue) {
  const auto big = at::tensor({int64_t{1} << 62}, at::kLong);
  EXPECT_EQ(compare(big + 1, big).differing, 1);
  EXPECT_TRUE(compare(big, big.clone()).equal());
}

TEST(Bits, MergeAddsCountsAndKeepsTheWorst) {
  BitsReport all;
  merge(all, compare(floats({1, 2}), floats({1, 2})));
  EXPECT_EQ(all.worst_index, -1);
  merge(all, compare(floats({1, 3}), floats({1, 2})));
  merge(all, compare(floats({kNan}), floats({1})));
  merge(all, compare(floats({-1e30f, 7}), floats({1e30f, 7})));
  EXPECT_EQ(all.compared, 7);
  EXPECT_EQ(all.differing, 3);
  EXPECT_EQ(all.not_finite, 1);
  EXPECT_TRUE(std::isnan(all.worst_got));
}

TEST(Bits, MatcherSaysWhatDiffers) {
  EXPECT_THAT(floats({1, 2}), HasTheBitsOf(floats({1, 2})));
  EXPECT_THAT(floats({1, 3}), testing::Not(HasTheBitsOf(floats({1, 2}))));
  testing::StringMatchResultListener text;
  const testing::Matcher<at::Tensor> matcher = HasTheBitsOf(floats({1, 2}));
  EXPECT_FALSE(matcher.MatchAndExplain(floats({1, 3}), &text));
  EXPECT_EQ(text.str(), "1 of 2 elements differ, worst [flat 1] got 3 want 2 (4194304 ulp)");
}

TEST(Bits, MatcherRefusesAComparisonOfNothing) {
  EXPECT_THAT(floats({}), testing::Not(HasTheBitsOf(floats({}))));
}

}  // namespace
}  // namespace equigrad::conformance::oracle
