#include "conformance/oracle/bound.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace equigrad::conformance::oracle {
namespace {

constexpr double kSingle = 0x1p-24;
constexpr double kBrain = 0x1p-8;

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

TEST(Bound, UnitRoundoffIsHalfTheEpsilon) {
  EXPECT_EQ(unit_roundoff(at::kFloat), std::numeric_limits<float>::epsilon() / 2);
  EXPECT_EQ(unit_roundoff(at::kDouble), std::numeric_limits<double>::epsilon() / 2);
  EXPECT_EQ(unit_roundoff(at::kBFloat16), kBrain);
  EXPECT_EQ(unit_roundoff(at::kHalf), 0x1p-11);
  EXPECT_THROW(unit_roundoff(at::kLong), std::runtime_error);
}

TEST(Bound, GammaIsAboveRoundingsAndBothAboveTheirFirstOrder) {
  for (const int64_t n : {1, 2, 3, 10, 100}) {
    for (const double u : {kSingle, kBrain / 2, 0x1p-40}) {
      const double first_order = static_cast<double>(n) * u;
      EXPECT_GE(roundings(n, u), first_order);
      EXPECT_GE(gamma(n, u), roundings(n, u));
      EXPECT_LE(gamma(n, u), first_order / (1 - first_order) * (1 + 0x1p-40));
    }
  }
  EXPECT_EQ(roundings(0, kBrain), 0);
  EXPECT_THROW(gamma(256, kBrain), std::runtime_error);
  EXPECT_THROW(roundings(-1, kBrain), std::runtime_error);
}

// A plain run whose average was rounded to fp32 may be off by that much itself.
TEST(Bound, TheStoredAverageMayBeRounded) {
  const auto got = doubles({1 + 0.9 * kSingle}), one = doubles({1});
  EXPECT_TRUE(check_reduction(got, one.to(at::kFloat), one, Reduction{}).held());
  EXPECT_FALSE(check_reduction(got, one, one, Reduction{}).held());
  EXPECT_FALSE(check_reduction(got + kSingle, one.to(at::kFloat), one, Reduction{}).held());
}

TEST(Bound, ThreePartiesAllowTheErrorOfThePlainRunAndNoMore) {
  Reduction r;
  r.world = 2;
  const auto truth = doubles({1.0}), plain = doubles({1.125}), absolute = doubles({2.0});
  const double limit = 2 * reduction_bound(r).relative;
  EXPECT_TRUE(check_gradient(doubles({1.125}), plain, truth, absolute, r).held());
  EXPECT_TRUE(check_gradient(doubles({0.875}), plain, truth, absolute, r).held());
  EXPECT_TRUE(check_gradient(doubles({1.125 + 0.9 * limit}), plain, truth, absolute, r).held());
  EXPECT_FALSE(check_gradient(doubles({1.125 + 1.1 * limit}), plain, truth, absolute, r).held());
  EXPECT_FALSE(check_reduction(doubles({0.875}), plain, absolute, r).held())
      << "the direct check is the sharper one";
}

TEST(Bound, NotFiniteNeverHolds) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, infinity, -infinity}) {
    EXPECT_EQ(check(doubles({bad, 1}), doubles({bad, 1}), doubles({1, 1})).violations, 1);
    EXPECT_EQ(check(doubles({1, bad}), doubles({1, 1}), doubles({1, 1})).not_finite, 1);
    EXPECT_FALSE(check(doubles({1}), doubles({1}), doubles({bad})).held()) << "no bound at all";
  }
  const auto report = check(doubles({1, nan}), doubles({3, 1}), doubles({1, 1}));
  EXPECT_EQ(report.worst_index, 1) << "not finite comes first";
}

TEST(Bound, NothingComparedDoesNotHold) {
  BoundReport all = check(doubles({}), doubles({}), doubles({}));
  EXPECT_FALSE(all.held());
  EXPECT_EQ(describe(all), "nothing was compared");
  merge(all, check(doubles({1, 2}), doubles({1, 2.5}), doubles({0, 1})));
  EXPECT_TRUE(all.held());
  EXPECT_EQ(all.compared, 2);
  EXPECT_EQ(all.margin, 0.5);
  EXPECT_EQ(all.worst_index, 1);
  merge(all, check(doubles({1}), doubles({1.5}), doubles({0})));
  EXPECT_FALSE(all.held());
  EXPECT_EQ(all.margin, std::numeric_limits<double>::infinity());
}

TEST(Bound, SizesMustAgree) {
  EXPECT_THROW(check(doubles({1}), doubles({1, 2}), doubles({1})), std::runtime_error);
  EXPECT_THROW(check(doubles({1}), doubles({1}), doubles({1, 2})), std::runtime_error);
  EXPECT_THROW(check(at::Tensor(), doubles({1}), doubles({1})), std::runtime_error);
  EXPECT_THROW(check_reduction(doubles({1}), doubles({1}), doubles({1, 2}), {}),
               std::runtime_error);
}

}  // namespace
}  // namespace equigrad::conformance::oracle
