#include "conformance/oracle/bound.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace equigrad::conformance::oracle {
namespace {

constexpr double kSingle = 0x1p-24;
constexpr double kBrain = 0x1p-8;

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

// The documented order of additions, written once more: plain loops over one element.
using Contributions = std::vector<std::vector<float>>;  // [rank][pass]

float to(at::ScalarType dtype, float value) {
  return dtype == at::kBFloat16 ? static_cast<float>(at::BFloat16(value)) : value;
}

float tree(std::vector<float> level) {
  while (level.size() > 1) {
    std::vector<float> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = next;
  }
  return level[0];
}

float engine_average(const Contributions& c, const Reduction& r) {
  float sum = 0;
  if (r.order == SumOrder::AddThenReduce) {
    std::vector<float> windows;
    for (const auto& row : c) {
      float window = to(r.accumulate_dtype, row[0]);
      for (size_t p = 1; p < row.size(); ++p) window = to(r.accumulate_dtype, window + row[p]);
      windows.push_back(window);
    }
    sum = to(r.accumulate_dtype, tree(windows));
  } else {
    for (size_t p = 0; p < c[0].size(); ++p) {
      std::vector<float> column;
      for (const auto& row : c) column.push_back(row[p]);
      const float reduced = tree(column);
      sum = to(r.accumulate_dtype, p == 0 ? reduced : sum + reduced);
    }
  }
  const auto count = static_cast<double>(r.world * r.accumulation_steps);
  const float average = sum * static_cast<float>(1.0 / count);
  return r.clip_factor == 1 ? average : average * static_cast<float>(r.clip_factor);
}

// `numel` elements of every (order, dtypes, world, passes, clip); calls visit(reduction, got,
// plain, absolute): the engine's result and the exact one.
template <class Visit>
void for_each_reduction(int64_t numel, const Visit& visit) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  for (const auto order : {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd}) {
    for (const auto& [param, accumulate] :
         {std::pair{at::kFloat, at::kFloat}, std::pair{at::kBFloat16, at::kFloat},
          std::pair{at::kBFloat16, at::kBFloat16}, std::pair{at::kFloat, at::kBFloat16}}) {
      for (int64_t world = 1; world <= 5; ++world) {
        for (const int64_t passes : {1, 2, 3, 4, 7}) {
          for (const double clip : {1.0, static_cast<double>(0.3f)}) {
            Reduction r;
            r.world = world, r.accumulation_steps = passes, r.order = order;
            r.param_dtype = param, r.accumulate_dtype = accumulate, r.clip_factor = clip;
            std::vector<float> got;
            std::vector<double> plain, absolute;
            for (int64_t i = 0; i < numel; ++i) {
              Contributions c(static_cast<size_t>(world));
              double sum = 0, sizes = 0;
              for (auto& row : c) {
                for (int64_t p = 0; p < passes; ++p) {
                  row.push_back(to(param, normal(random) * std::exp2(normal(random) * 4)));
                  sum += static_cast<double>(row.back());
                  sizes += std::fabs(static_cast<double>(row.back()));
                }
              }
              got.push_back(engine_average(c, r));
              plain.push_back(sum / static_cast<double>(world * passes));
              absolute.push_back(sizes / static_cast<double>(world * passes));
            }
            visit(r, at::tensor(got), doubles(plain), doubles(absolute));
          }
        }
      }
    }
  }
}

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

TEST(Bound, OneRankOneMicroBatchMustBeExact) {
  EXPECT_EQ(reduction_bound(Reduction{}).relative, 0);
  EXPECT_EQ(reduction_bound(Reduction{}).absolute, 0);
}

TEST(Bound, CountsTheRoundingsOfEachOrder) {
  Reduction r;
  r.world = 4, r.accumulation_steps = 4;
  EXPECT_EQ(reduction_bound(r).relative, roundings(5, kSingle) * (1 + 0x1p-51));
  r.accumulation_steps = 3;  // 1/12 is rounded, and so is the product
  EXPECT_EQ(reduction_bound(r).relative, roundings(6, kSingle) * (1 + 0x1p-51));
  r.param_dtype = r.accumulate_dtype = at::kBFloat16;
  const double both = reduction_bound(r).relative;
  EXPECT_GT(both, roundings(3, kBrain));
  EXPECT_LT(both, roundings(3, kBrain) + 2 * roundings(6, kSingle));
  r.order = SumOrder::ReduceThenAdd;
  EXPECT_EQ(reduction_bound(r).relative, both);
  r.param_dtype = at::kFloat;  // only the other order rounds the contributions themselves
  EXPECT_EQ(reduction_bound(r).relative, both);
  r.order = SumOrder::AddThenReduce;
  EXPECT_GT(reduction_bound(r).relative, roundings(4, kBrain));
}

TEST(Bound, ARightReductionNeverBreaksIt) {
  int64_t compared = 0;
  for_each_reduction(50, [&](const Reduction& r, const at::Tensor& got, const at::Tensor& plain,
                             const at::Tensor& absolute) {
    const auto report = check_reduction(got, plain, absolute, r);
    EXPECT_TRUE(report.held()) << describe(report) << " world " << r.world << " passes "
                               << r.accumulation_steps;
    EXPECT_TRUE(check_gradient(got, plain, plain * 1.01, absolute, r).held());
    EXPECT_TRUE(check_reduction(got, plain.to(at::kFloat), absolute, r).held());
    compared += report.compared;
  });
  EXPECT_EQ(compared, 2 * 4 * 5 * 5 * 2 * 50);
}

// A path of roundings that all go the same way comes close to the bound.
TEST(Bound, IsNearlyAttained) {
  Reduction r;
  r.accumulate_dtype = r.param_dtype = at::kBFloat16;
  r.accumulation_steps = 2;
  // 1 + 2^-8 lies half way between two bf16 numbers and is rounded down to the even one.
  const Contributions c{{1.0f, 0x1p-8f}};
  const double exact = (1 + 0x1p-8) / 2;
  const float got = engine_average(c, r);
  const auto report = check_reduction(at::tensor({got}), doubles({exact}), doubles({exact}), r);
  EXPECT_TRUE(report.held());
  EXPECT_GT(report.margin, 0.45) << "of two roundings counted, one may be wrong by u";
}

TEST(Bound, AnErrorJustOverItIsSeen) {
  for_each_reduction(4, [&](const Reduction& r, const at::Tensor&, const at::Tensor& plain,
                            const at::Tensor& absolute) {
    const ReductionBound bound = reduction_bound(r);
    const auto limit = absolute * (bound.relative * r.clip_factor) + bound.absolute;
    const auto inside = plain * r.clip_factor + limit * 0.99;
    const auto outside = plain * r.clip_factor + limit * 1.01 + absolute * 0x1p-40;
    EXPECT_EQ(check_reduction(inside, plain, absolute, r).violations, 0);
    EXPECT_EQ(check_reduction(outside, plain, absolute, r).violations, 4);
  });
}

TEST(Bound, TheCommonFaultsAreFarOutsideInEveryReduction) {
  for_each_reduction(50, [&](const Reduction& r, const at::Tensor& got, const at::Tensor& plain,
                             const at::Tensor& absolute) {
    const auto shifted = at::roll(got, 1);
    EXPECT_FALSE(check_reduction(shifted, plain, absolute, r).held());
    for (const double factor : {0.0, 0.5, 2.0, -1.0, 1.0 / 3}) {
      const auto wrong = got.to(at::kDouble) * factor;
      EXPECT_FALSE(check_reduction(wrong, plain, absolute, r).held()) << factor;
      EXPECT_FALSE(check_gradient(wrong, plain, plain * (1 + 0x1p-9), absolute, r).held());
    }
  });
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

TEST(Bound, UnderflowHasItsOwnTerm) {
  Reduction r;
  r.world = 2;
  const Contributions c{{0x1p-149f}, {0}};
  const auto exact = doubles({0x1p-150});
  const auto report = check_reduction(at::tensor({engine_average(c, r)}), exact, exact, r);
  EXPECT_TRUE(report.held()) << describe(report);
  EXPECT_GT(report.margin, 0.9);
  r.accumulate_dtype = at::kBFloat16;
  EXPECT_GT(reduction_bound(r).absolute, 0x1p-134);
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
