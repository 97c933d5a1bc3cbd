// What is sent and how it is averaged: each rounding, kind and order against a formulation in
// single floats, one element at a time.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>

#include "reference/stepper.hpp"
#include "reference/tests/probe.hpp"
#include "reference/tests/same_bits.hpp"

namespace equigrad::reference {
namespace {

using conformance::Probe;
using conformance::rounded;
using conformance::same_bits;

constexpr int64_t kNumel = 61, kWorld = 3, kPasses = 2;
constexpr std::optional<at::ScalarType> kNone = std::nullopt;

float value_of(int64_t pass, int64_t rank, int64_t element) {
  const double wave = std::sin(0.7 + 1.3 * static_cast<double>(pass * 3 + rank + element * 7));
  return static_cast<float>(wave / static_cast<double>(1 + element % 5 * 3));
}

at::Tensor values_of(int64_t pass, int64_t rank) {
  at::Tensor x = at::empty({kNumel}, at::kFloat);
  for (int64_t i = 0; i < kNumel; ++i) x[i] = value_of(pass, rank, i);
  return x;
}

Recipe recipe_in(at::ScalarType compute, SumOrder order) {
  Recipe recipe;
  recipe.world = kWorld;
  recipe.accumulation_steps = kPasses;
  recipe.compute_dtype = compute;
  recipe.order = order;
  recipe.precision.predivide_factor = 1.7;
  return recipe;
}

StepRecord run(const Recipe& recipe) {
  const auto probe = std::make_shared<Probe>(kNumel);
  Stepper stepper(recipe, probe);
  for (int64_t pass = 0; pass < kPasses; ++pass) {
    for (int64_t rank = 0; rank < kWorld; ++rank) {
      const at::Tensor loss = probe->loss_of(values_of(pass, rank)) * stepper.loss_scale();
      stepper.pass(rank, [&] { loss.backward(); });
    }
  }
  return stepper.step();
}

struct Factors {
  float before, after;
};

Factors factors_of(const Recipe& recipe) {
  const double f = recipe.precision.predivide_factor;
  const double averaged = static_cast<double>(kWorld) / static_cast<double>(recipe.sequence);
  switch (recipe.precision.averaging) {
    case Averaging::AfterSum:
      return {1.0F, static_cast<float>(1.0 / (2 * averaged))};
    case Averaging::BeforeSum:
      return {static_cast<float>(1.0 / averaged), 0.5F};
    case Averaging::Around:
      return {static_cast<float>(1 / f), static_cast<float>(f / (2 * averaged))};
    default:
      return {1.0F, 0.5F};
  }
}

// One element's gradient by the tables of precision.hpp and sum.hpp.
float expected(const Recipe& recipe, int64_t element) {
  const PrecisionSpec& precision = recipe.precision;
  const float scale = static_cast<float>(
      precision.loss_scale.policy == LossScaleSpec::Policy::Static ? precision.loss_scale.initial
                                                                   : 1);
  const auto [before, after] = factors_of(recipe);
  const at::ScalarType narrow = recipe.accumulate_dtype;
  const bool adds_first = recipe.order == SumOrder::AddThenReduce;
  const auto sent = [&, b = before](float x) {
    return rounded(
        x * b, precision.communication_dtype.value_or(adds_first ? narrow : recipe.compute_dtype));
  };
  float c[kPasses][kWorld];
  for (int64_t pass = 0; pass < kPasses; ++pass) {
    for (int64_t rank = 0; rank < kWorld; ++rank) {
      c[pass][rank] = rounded(value_of(pass, rank, element) * scale, recipe.compute_dtype);
    }
  }
  float sum = 0;
  if (adds_first) {
    float t[kWorld];
    for (int64_t rank = 0; rank < kWorld; ++rank) {
      t[rank] = sent(rounded(rounded(c[0][rank], narrow) + c[1][rank], narrow));
    }
    sum = rounded((t[0] + t[1]) + t[2], narrow);
  } else {
    for (const auto& ranks : c) {
      sum = rounded(sum + ((sent(ranks[0]) + sent(ranks[1])) + sent(ranks[2])), narrow);
    }
  }
  return rounded(sum * after / scale, precision.master_dtype);
}

void expect_gradient(const Recipe& recipe) {
  at::Tensor want = at::empty({kNumel}, at::kFloat);
  for (int64_t i = 0; i < kNumel; ++i) want[i] = expected(recipe, i);
  EXPECT_TRUE(
      same_bits(run(recipe).gradients.at("weight"), want.to(recipe.precision.master_dtype)));
}

void expect_all_kinds(Recipe recipe) {
  for (const auto communication :
       {kNone, std::optional(at::kFloat), std::optional(at::kBFloat16), std::optional(at::kHalf)}) {
    for (const Averaging kind :
         {Averaging::AfterSum, Averaging::BeforeSum, Averaging::Around, Averaging::Never}) {
      for (const double scale : {1.0, 1024.0}) {
        recipe.precision.communication_dtype = communication;
        recipe.precision.averaging = kind;
        recipe.precision.loss_scale = {.policy = LossScaleSpec::Policy::Static, .initial = scale};
        SCOPED_TRACE(testing::Message() << communication.value_or(at::kInt) << " kind "
                                        << static_cast<int>(kind) << " scale " << scale);
        expect_gradient(recipe);
      }
    }
  }
}

TEST(Averaging, EveryRoundingIsWhereItIsDocumented) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType narrow : {at::kFloat, compute}) {
      for (const at::ScalarType master : {at::kFloat, compute}) {
        for (const SumOrder order : {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd}) {
          Recipe recipe = recipe_in(compute, order);
          recipe.accumulate_dtype = narrow;
          recipe.precision.master_dtype = master;
          SCOPED_TRACE(testing::Message() << compute << " " << narrow << " " << master << " order "
                                          << static_cast<int>(order));
          expect_all_kinds(recipe);
        }
      }
    }
  }
}

// Those of one sequence are added, and count as one rank.
TEST(Averaging, OfOneSequenceRanksAreAdded) {
  for (const SumOrder order : {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd}) {
    Recipe recipe = recipe_in(at::kFloat, order);
    recipe.sequence = kWorld;
    expect_all_kinds(recipe);
    recipe.sequence = 2;
    EXPECT_THROW(run(recipe), c10::Error);
  }
}

TEST(Averaging, Fp64KnowsNoCommunicationDtypeAndNoFactorBeforeTheSum) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const Recipe plain = recipe_in(compute, SumOrder::Fp64);
    const TensorMap want = run(plain).gradients;
    Recipe other = plain;
    if (compute != at::kDouble) other.precision.communication_dtype = at::kBFloat16;
    for (const Averaging kind : {Averaging::BeforeSum, Averaging::Around}) {
      other.precision.averaging = kind;
      EXPECT_TRUE(same_bits(run(other).gradients, want));
    }
    other.precision.averaging = Averaging::Never;
    at::Tensor sum = at::zeros({kNumel}, at::kDouble);
    for (int64_t i = 0; i < kPasses * kWorld; ++i) {
      sum += values_of(i / kWorld, i % kWorld).to(compute).to(at::kDouble);
    }
    const auto master = compute == at::kDouble ? at::kDouble : at::kFloat;
    EXPECT_TRUE(same_bits(run(other).gradients.at("weight"), (sum * 0.5).to(master)));
    EXPECT_TRUE(same_bits(want.at("weight"), (sum * (1.0 / 6)).to(master)));
  }
}

TEST(Averaging, Fp64KeepsMastersAndScaleOfTheRecipe) {
  Recipe recipe = recipe_in(at::kBFloat16, SumOrder::Fp64);
  const at::Tensor plain = run(recipe).gradients.at("weight");
  recipe.precision.loss_scale = {.policy = LossScaleSpec::Policy::Static, .initial = 256};
  EXPECT_TRUE(same_bits(run(recipe).gradients.at("weight"), plain));
  recipe.precision.master_dtype = recipe.precision.state_dtype = at::kBFloat16;
  const StepRecord record = run(recipe);
  EXPECT_TRUE(same_bits(record.gradients.at("weight"), plain.to(at::kBFloat16)));
  EXPECT_EQ(record.state.at("exp_avg").at("weight").scalar_type(), at::kBFloat16);
}

TEST(Averaging, TheAbsoluteSumIsAveragedAndUnscaledToo) {
  at::Tensor absolute = at::zeros({kNumel}, at::kDouble);
  for (int64_t i = 0; i < kPasses * kWorld; ++i) {
    absolute += values_of(i / kWorld, i % kWorld).abs().to(at::kDouble);
  }
  for (const SumOrder order : {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd, SumOrder::Fp64}) {
    Recipe recipe = recipe_in(at::kFloat, order);
    recipe.precision.loss_scale = {.policy = LossScaleSpec::Policy::Static, .initial = 64};
    for (const Averaging kind :
         {Averaging::AfterSum, Averaging::BeforeSum, Averaging::Around, Averaging::Never}) {
      recipe.precision.averaging = kind;
      const double factor = kind == Averaging::Never ? 0.5 : 1.0 / 6;
      // Added rank by rank in fp64, where the scale is exact.
      EXPECT_TRUE(same_bits(run(recipe).absolute_sum.at("weight"), absolute * factor));
    }
  }
}

}  // namespace
}  // namespace equigrad::reference
