// The documented orders of addition, by hand: which ranks and passes are added first, and where a
// sum is rounded.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "reference/trainer.hpp"

namespace equigrad::reference {
namespace {

Contributions contributions(const std::vector<std::vector<float>>& values,
                            at::ScalarType dtype = at::kFloat) {
  Contributions made;
  for (const auto& ranks : values) {
    made.emplace_back();
    for (const float value : ranks) made.back().push_back(at::full({1}, value, dtype));
  }
  return made;
}

float sum(const Contributions& made, SumOrder order, at::ScalarType accumulate = at::kFloat) {
  return sum_contributions(made, order, accumulate).to(at::kFloat).item<float>();
}

constexpr float kHalf = 0x1p-24F;  // half a unit in the last place of 1

TEST(SumContributions, AddsNeighbouringRanksFirst) {
  // ((1 + h) + (h + h)) keeps one unit, (((1 + h) + h) + h) loses all three halves.
  const Contributions four = contributions({{1, kHalf, kHalf, kHalf}});
  for (const SumOrder order : {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd}) {
    EXPECT_EQ(sum(four, order), 1 + 2 * kHalf);
  }
  EXPECT_EQ(sum(four, SumOrder::Fp64), 1 + 4 * kHalf);  // 1 + 3 h, then to fp32: a tie to even
}

TEST(SumContributions, CarriesAnOddLastRankUp) {
  for (const SumOrder order : {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd}) {
    EXPECT_EQ(sum(contributions({{1, kHalf, kHalf}}), order), 1);              // (1 + h) + h
    EXPECT_EQ(sum(contributions({{kHalf, kHalf, 1}}), order), 1 + 2 * kHalf);  // (h + h) + 1
    // ((1 + h) + (h + h)) + h: the last addition is a tie and goes to even.
    EXPECT_EQ(sum(contributions({{1, kHalf, kHalf, kHalf, kHalf}}), order), 1 + 4 * kHalf);
    // ((1 + h) + (h + 0)) + h loses all; joining the fifth to the fourth would not.
    EXPECT_EQ(sum(contributions({{1, kHalf, kHalf, 0, kHalf}}), order), 1);
  }
}

TEST(SumContributions, TheGridForgetsTheOrder) {
  EXPECT_EQ(sum(contributions({{1, kHalf, kHalf, kHalf}}), SumOrder::ExactGrid), 1 + 4 * kHalf);
  EXPECT_EQ(sum(contributions({{kHalf}, {1}}), SumOrder::ExactGrid), 1);  // a tie to even
  EXPECT_EQ(sum(contributions({{kHalf, 1}, {0x1p-31F, 0}}), SumOrder::ExactGrid), 1 + 2 * kHalf);
  // The largest is 2^32: u = 2^-31 and 2^33 has u = 2; what is smaller than u is nothing.
  EXPECT_EQ(sum(contributions({{0x1p32F, -0x1p32F}, {1.75F * 0x1p-31F, 0}}), SumOrder::ExactGrid),
            2 * 0x1p-31F);
  EXPECT_EQ(sum(contributions({{0x1p33F, 3}, {-0x1p33F, 1.75F}}), SumOrder::ExactGrid), 4);
  EXPECT_EQ(sum(contributions({{INFINITY, 1}, {INFINITY, 0}}), SumOrder::ExactGrid), INFINITY);
  EXPECT_TRUE(std::isnan(sum(contributions({{INFINITY, 1}, {-INFINITY, 0}}), SumOrder::ExactGrid)));
  const auto twice = sum_contributions(contributions({{1 + 2 * kHalf}, {1}}), SumOrder::ExactGrid,
                                       at::kFloat, {2, 1}, {.dtype = at::kBFloat16});
  EXPECT_EQ(twice.item<float>(), 3);  // T(2 c) + T(c)
  // 5 (1/3), and not 5/3: the factor before the sum is a number in fp32 by itself.
  const auto weighed = sum_contributions(contributions({{1}}), SumOrder::ExactGrid, at::kFloat, {5},
                                         {.factor = 1.0 / 3.0});
  EXPECT_EQ(weighed.item<float>(), 5 * (1.0F / 3.0F));
  EXPECT_NE(weighed.item<float>(), 5.0F / 3.0F);
}

TEST(SumContributions, AddsPassesBeforeRanksOrAfter) {
  const Contributions made = contributions({{1, kHalf}, {kHalf, kHalf}});
  EXPECT_EQ(sum(made, SumOrder::AddThenReduce), 1 + 2 * kHalf);  // (1 + h) + (h + h)
  EXPECT_EQ(sum(made, SumOrder::ReduceThenAdd), 1 + 2 * kHalf);  // (1 + h) + (h + h)
  const Contributions other = contributions({{1, 0}, {kHalf, kHalf}});
  EXPECT_EQ(sum(other, SumOrder::AddThenReduce), 1);              // (1 + h) + (0 + h)
  EXPECT_EQ(sum(other, SumOrder::ReduceThenAdd), 1 + 2 * kHalf);  // (1 + 0) + (h + h)
}

TEST(SumContributions, RoundsToTheAccumulateDtypeWhereDocumented) {
  constexpr float kSmall = 0x1p-8F;  // half a unit in the last place of 1 in bf16
  const Contributions made = contributions({{1, kSmall}, {kSmall, kSmall}}, at::kBFloat16);
  // A(1 + s) = 1 and A(s + s) = 2 s; the tree keeps 1 + 2 s.
  EXPECT_EQ(sum(made, SumOrder::AddThenReduce, at::kBFloat16), 1 + 2 * kSmall);
  // A(1 + s) = 1; then 1 + 2 s.
  EXPECT_EQ(sum(made, SumOrder::ReduceThenAdd, at::kBFloat16), 1 + 2 * kSmall);
  // 1 + 3 s without rounding on the way.
  EXPECT_EQ(sum(made, SumOrder::AddThenReduce), 1 + 3 * kSmall);
  EXPECT_EQ(sum(made, SumOrder::ReduceThenAdd), 1 + 3 * kSmall);
  // 1 + 2 s + s is a tie in bf16 and goes to even.
  const Contributions odd = contributions({{1 + 2 * kSmall, kSmall}}, at::kBFloat16);
  EXPECT_EQ(sum(odd, SumOrder::AddThenReduce, at::kBFloat16), 1 + 4 * kSmall);
  EXPECT_EQ(sum(odd, SumOrder::ReduceThenAdd, at::kBFloat16), 1 + 4 * kSmall);
  EXPECT_EQ(sum_contributions(odd, SumOrder::ReduceThenAdd, at::kBFloat16).scalar_type(),
            at::kBFloat16);
}

TEST(SumContributions, RoundsWhatTravelsAndWeighsItWhereDocumented) {
  constexpr float kSmall = 0x1p-8F;
  const Sending sending = {.dtype = at::kBFloat16};
  const auto total = [&](const Contributions& made, SumOrder order, double weight) {
    return sum_contributions(made, order, at::kFloat, {weight}, sending).item<float>();
  };
  const Contributions one = contributions({{1 + kSmall}});
  EXPECT_EQ(total(one, SumOrder::ReduceThenAdd, 3), 3);               // T(1 + s) 3
  EXPECT_EQ(total(one, SumOrder::AddThenReduce, 3), 3 + 4 * kSmall);  // T(3 + 3 s)
  EXPECT_EQ(total(one, SumOrder::Fp64, 1), 1 + kSmall);               // no communication dtype
  const Contributions two = contributions({{1, kSmall}});
  EXPECT_EQ(total(two, SumOrder::ReduceThenAdd, 1),
            1 + kSmall);  // the sum itself is not rounded to T
  EXPECT_EQ(total(two, SumOrder::AddThenReduce, 1), 1 + kSmall);
  const Sending third = {.factor = 1.0 / 3};
  EXPECT_EQ(sum_contributions(one, SumOrder::AddThenReduce, at::kFloat, {}, third).item<float>(),
            (1 + kSmall) * static_cast<float>(1.0 / 3));
}

}  // namespace
}  // namespace equigrad::reference
