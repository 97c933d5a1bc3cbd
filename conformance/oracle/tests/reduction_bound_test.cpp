// The bound of a reduction against the documented order of additions, in loops_over_ranks.hpp.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "conformance/oracle/bound.hpp"
#include "conformance/oracle/tests/loops_over_ranks.hpp"

namespace equigrad::conformance::oracle {
namespace {

constexpr double kSingle = 0x1p-24;
constexpr double kBrain = 0x1p-8;
constexpr double kHalf = 0x1p-11;

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

struct Types {
  at::ScalarType param, accumulate, master;
  std::optional<at::ScalarType> communication_dtype;
};

std::vector<Types> all_types() {
  const auto single = at::kFloat, brain = at::kBFloat16, half = at::kHalf;
  return {{single, single, single, {}},    {brain, single, single, {}},
          {brain, brain, single, {}},      {single, brain, single, {}},
          {half, single, single, {}},      {half, half, single, {}},
          {half, half, half, {}},          {brain, brain, brain, {}},
          {single, single, single, brain}, {single, single, single, half},
          {brain, brain, single, single},  {brain, brain, single, half},
          {brain, single, brain, brain}};
}

std::vector<Reduction> all_reductions() {
  std::vector<Reduction> all;
  for (const auto& types : all_types()) {
    Reduction r;
    r.param_dtype = types.param, r.accumulate_dtype = types.accumulate;
    r.master_dtype = types.master, r.communication_dtype = types.communication_dtype,
    r.predivide_factor = 3;
    for (const auto order : {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd}) {
      for (const auto division :
           {Averaging::AfterSum, Averaging::BeforeSum, Averaging::Around, Averaging::Never}) {
        for (int64_t world = 1; world <= 5; ++world) {
          for (const int64_t passes : {1, 2, 3, 4, 7}) {
            for (const double clip : {1.0, static_cast<double>(0.3f)}) {
              r.world = world, r.sequence = world % 2 == 0 ? 2 : 1;
              r.accumulation_steps = passes, r.order = order;
              r.averaging = division, r.any_order = passes == 2, r.clip_factor = clip;
              r.loss_scale = types.param == at::kHalf ? 64 : 1;
              all.push_back(r);
            }
          }
        }
      }
    }
  }
  return all;
}

// Some of them are subnormal in fp16, and no sum of them overflows.
float some_value(std::mt19937_64& random, bool is_half) {
  std::normal_distribution<float> normal;
  const float size = is_half ? std::exp2(normal(random) * 2 - 6) : std::exp2(normal(random) * 4);
  return normal(random) * size;
}

// `numel` elements of every reduction; calls visit(reduction, got, plain, absolute): the engine's
// result and the exact one.
template <class Visit>
void for_each_reduction(int64_t numel, const Visit& visit) {
  std::mt19937_64 random(7);
  for (const auto& r : all_reductions()) {
    const bool is_half = r.param_dtype == at::kHalf || r.communication_dtype == at::kHalf;
    const auto ranks = r.averaging == Averaging::Never ? 1 : r.world / r.sequence;
    const double mean = 1 / static_cast<double>(ranks * r.accumulation_steps);
    std::vector<float> got;
    std::vector<double> plain, absolute;
    for (int64_t i = 0; i < numel; ++i) {
      Contributions c(static_cast<size_t>(r.world));
      double sum = 0, sizes = 0;
      for (auto& row : c) {
        for (int64_t p = 0; p < r.accumulation_steps; ++p) {
          const auto scale = static_cast<float>(r.loss_scale);
          row.push_back(to(r.param_dtype, some_value(random, is_half) * scale));
          sum += static_cast<double>(row.back());
          sizes += std::fabs(static_cast<double>(row.back()));
        }
      }
      got.push_back(engine_average(c, r));
      plain.push_back(sum * mean / r.loss_scale);
      absolute.push_back(sizes * mean / r.loss_scale);
    }
    visit(r, at::tensor(got), doubles(plain), doubles(absolute));
  }
}

std::string name_of(const Reduction& r) {
  std::ostringstream text;
  text << r.param_dtype << " " << r.accumulate_dtype << " " << r.master_dtype << " division "
       << static_cast<int>(r.averaging) << " world " << r.world << " passes "
       << r.accumulation_steps;
  if (r.communication_dtype) text << " is sent in " << *r.communication_dtype;
  return text.str();
}

TEST(ReductionBound, OneRankOneMicroBatchMustBeExact) {
  EXPECT_EQ(reduction_bound(Reduction{}).relative, 0);
  EXPECT_EQ(reduction_bound(Reduction{}).absolute, 0);
}

TEST(ReductionBound, CountsTheRoundingsOfEachOrder) {
  Reduction r;
  r.world = 4, r.accumulation_steps = 4;
  EXPECT_EQ(reduction_bound(r).relative, roundings(5, kSingle) * (1 + 0x1p-49));
  r.accumulation_steps = 3;  // 1/12 is rounded, and so is the product
  EXPECT_EQ(reduction_bound(r).relative, roundings(6, kSingle) * (1 + 0x1p-49));
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

TEST(ReductionBound, CountsTheRoundingsOfWhatTravelsAndOfMasters) {
  Reduction r;
  r.world = 4;  // two additions, and all factors are powers of two
  const auto one = [](int64_t n, double u) { return roundings(n, u); };
  EXPECT_LT(reduction_bound(r).relative, one(3, kSingle));
  r.loss_scale = 1024;
  EXPECT_LT(reduction_bound(r).relative, one(3, kSingle)) << "a power of two rounds nothing";
  r.communication_dtype = at::kBFloat16;
  EXPECT_GT(reduction_bound(r).relative, one(1, kBrain) + one(2, kSingle) / 2);
  EXPECT_LT(reduction_bound(r).relative, one(1, kBrain) + one(3, kSingle));
  r.communication_dtype = at::kFloat;
  EXPECT_LT(reduction_bound(r).relative, one(3, kSingle));
  r.communication_dtype.reset();
  r.averaging = Averaging::Around, r.predivide_factor = 3;
  EXPECT_GT(reduction_bound(r).relative, one(5, kSingle)) << "1 / 3 and 3 / 4, two each";
  EXPECT_LT(reduction_bound(r).relative, one(7, kSingle));
  r.averaging = Averaging::BeforeSum;
  EXPECT_LT(reduction_bound(r).relative, one(3, kSingle));
  r.param_dtype = r.accumulate_dtype = r.master_dtype = at::kHalf;
  EXPECT_LT(reduction_bound(r).relative, one(1, kHalf) + one(3, kSingle)) << "after the tree only";
  r.world = 3;  // a third of fp16 is not fp16
  EXPECT_GT(reduction_bound(r).relative, one(2, kHalf));
  r.clip_factor = 0.5;
  EXPECT_GT(reduction_bound(r).relative, one(3, kHalf));
  r.loss_scale = 3;
  EXPECT_THROW(reduction_bound(r), std::runtime_error);
}

// What is lost below the smallest number of 16 bits shrinks with the loss scale.
TEST(ReductionBound, UnderflowIsDividedByTheLossScale) {
  Reduction r;
  r.param_dtype = r.accumulate_dtype = at::kHalf;
  r.accumulation_steps = 2;
  const double without = reduction_bound(r).absolute;
  EXPECT_GT(without, 0x1p-25);
  r.loss_scale = 1024;
  EXPECT_LT(reduction_bound(r).absolute, without / 1023);
  EXPECT_GT(reduction_bound(r).absolute, without / 1025);
  r.master_dtype = at::kHalf;
  EXPECT_GT(reduction_bound(r).absolute, 0x1p-25) << "the average is not scaled";
}

TEST(ReductionBound, ARightReductionNeverBreaksIt) {
  int64_t compared = 0;
  for_each_reduction(50, [&](const Reduction& r, const at::Tensor& got, const at::Tensor& plain,
                             const at::Tensor& absolute) {
    const auto report = check_reduction(got, plain, absolute, r);
    EXPECT_TRUE(report.held()) << describe(report) << " " << name_of(r);
    EXPECT_TRUE(check_gradient(got, plain, plain * 1.01, absolute, r).held());
    EXPECT_TRUE(check_reduction(got, plain.to(at::kFloat), absolute, r).held());
    compared += report.compared;
  });
  EXPECT_EQ(compared, 13 * 2 * 4 * 5 * 5 * 2 * 50);
}

// A path of roundings that all go the same way comes close to the bound.
TEST(ReductionBound, IsNearlyAttained) {
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

// A little over half a unit, four times: every addition of a ring rounds up. A tree has three.
TEST(ReductionBound, OfAnyOrderIsAttainedByAChain) {
  Reduction r;
  r.world = 5, r.averaging = Averaging::Never, r.any_order = true;
  constexpr float kLittle = 0x1.00001p-24f;
  const Contributions c{{1.0f}, {kLittle}, {kLittle}, {kLittle}, {kLittle}};
  const auto exact = doubles({1 + 4 * static_cast<double>(kLittle)});
  const auto report = check_reduction(at::tensor({engine_average(c, r)}), exact, exact, r);
  EXPECT_TRUE(report.held()) << describe(report);
  EXPECT_GT(report.margin, 0.99);
}

TEST(ReductionBound, AnErrorJustOverItIsSeen) {
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

TEST(ReductionBound, TheCommonFaultsAreFarOutsideInEveryReduction) {
  for_each_reduction(50, [&](const Reduction& r, const at::Tensor& got, const at::Tensor& plain,
                             const at::Tensor& absolute) {
    const auto shifted = at::roll(got, 1);
    EXPECT_FALSE(check_reduction(shifted, plain, absolute, r).held()) << name_of(r);
    for (const double factor : {0.0, 0.5, 2.0, -1.0, 1.0 / 3}) {
      const auto wrong = got.to(at::kDouble) * factor;
      EXPECT_FALSE(check_reduction(wrong, plain, absolute, r).held()) << factor << name_of(r);
      EXPECT_FALSE(check_gradient(wrong, plain, plain * (1 + 0x1p-9), absolute, r).held());
    }
  });
}

TEST(ReductionBound, UnderflowHasItsOwnTerm) {
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

// Nothing is divided by three then.
TEST(ReductionBound, RanksOfOneSequenceAreAddedAndNotAveraged) {
  Reduction r;
  r.world = 3;
  const double averaged = reduction_bound(r).relative;
  r.sequence = 3;
  EXPECT_LT(reduction_bound(r).relative, averaged);
}

}  // namespace
}  // namespace equigrad::conformance::oracle
