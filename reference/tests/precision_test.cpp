// Precision: what is rounded to what, and where, against a formulation in single floats.
#include "reference/precision.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/norm.hpp"
#include "reference/stepper.hpp"
#include "reference/tests/probe.hpp"
#include "reference/tests/same_bits.hpp"

namespace equigrad::reference {
namespace {

using conformance::Probe;
using conformance::rounded;
using conformance::same_bits;

constexpr int64_t kNumel = 61;

// In (-1, 1), uneven, with small ones among them; differs for every (rank, pass).
at::Tensor uneven(int64_t number) {
  const at::Tensor places = at::arange(1, kNumel + 1, at::kDouble);
  const at::Tensor wave = (places * (1.37 + 0.61 * static_cast<double>(number))).sin();
  return (wave * (places.remainder(5) * -2).exp2()).to(at::kFloat);
}

std::vector<float> floats(const at::Tensor& x) {
  const at::Tensor flat = x.to(at::kFloat).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

at::Tensor tensor(const std::vector<float>& values, at::ScalarType dtype) {
  const auto numel = static_cast<int64_t>(values.size());
  return at::from_blob(const_cast<float*>(values.data()), {numel}).to(dtype, false, /*copy=*/true);
}

Recipe recipe_in(at::ScalarType compute, int64_t world = 1, int64_t accumulation = 1) {
  Recipe recipe;
  recipe.world = world;
  recipe.accumulation_steps = accumulation;
  recipe.compute_dtype = compute;
  recipe.order = SumOrder::AddThenReduce;
  recipe.optimizer = {.lr = 0.03, .weight_decay = 0.1};
  return recipe;
}

class Driven {
 public:
  explicit Driven(const Recipe& recipe)
      : stepper(recipe, std::make_shared<Probe>(kNumel)), recipe_(recipe) {}

  void pass(int64_t rank, const at::Tensor& x) {
    const at::Tensor loss = dynamic_cast<Probe&>(stepper.model()).loss_of(x) * stepper.loss_scale();
    stepper.pass(rank, [&] { loss.backward(); });
  }
  // A window of uneven gradients.
  StepRecord step(int64_t number = 0) {
    for (int64_t micro = 0; micro < recipe_.accumulation_steps; ++micro) {
      for (int64_t rank = 0; rank < recipe_.world; ++rank) {
        pass(rank, uneven(number * 10 + micro * recipe_.world + rank));
      }
    }
    return stepper.step();
  }

  Stepper stepper;

 private:
  Recipe recipe_;
};

TEST(Precision, RoundingByHandIsRoundingByTorch) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (const double power : {-140.0, -30.0, -24.0, -14.0, 0.0, 15.0, 16.0}) {
      const at::Tensor x = (uneven(3).to(at::kDouble) * std::exp2(power)).to(at::kFloat);
      std::vector<float> by_hand;
      for (const float value : floats(x)) by_hand.push_back(rounded(value, dtype));
      EXPECT_TRUE(same_bits(x.to(dtype).to(at::kFloat), tensor(by_hand, at::kFloat))) << power;
    }
  }
}

TEST(Precision, Fp32MastersStartFromBeforeTheRounding) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    Recipe recipe = recipe_in(dtype);
    recipe.optimizer = {.rule = Rule::Sgd, .lr = 0};
    const at::Tensor given = Probe(kNumel).weight.detach();
    Driven run(recipe);
    const StepRecord record = run.step();
    EXPECT_TRUE(same_bits(record.masters.at("weight"), given));
    EXPECT_TRUE(same_bits(record.parameters.at("weight"), given.to(dtype)));
    recipe.precision.master_dtype = dtype;
    EXPECT_TRUE(same_bits(Driven(recipe).step().masters.at("weight"), given.to(dtype)));
  }
}

// The update in single floats by the loops of optimizer.hpp, each stored value rounded once.
struct ByHand {
  std::vector<float> master, gradient;
  std::vector<std::vector<float>> state;

  void update(const Recipe& recipe, int64_t step) {
    std::vector<float*> states;
    for (auto& one : state) states.push_back(one.data());
    reference::update<float>(recipe.optimizer, step, kNumel, master.data(), states,
                             gradient.data());
    for (float& value : master) value = rounded(value, recipe.precision.master_dtype);
    for (auto& one : state) {
      for (float& value : one) value = rounded(value, recipe.precision.state_dtype);
    }
  }
};

void expect_update(const Recipe& recipe) {
  const auto names = state_names(recipe.optimizer);
  const PrecisionSpec& precision = recipe.precision;
  ByHand want;
  for (const float value : floats(Probe(kNumel).weight.detach())) {
    want.master.push_back(rounded(value, precision.master_dtype));
  }
  want.state.assign(names.size(), std::vector<float>(kNumel, 0.0F));
  Driven run(recipe);
  for (int64_t step = 1; step <= 3; ++step) {
    const StepRecord got = run.step(step);
    want.gradient.clear();
    for (const float value : floats(uneven(step * 10))) {
      want.gradient.push_back(
          rounded(rounded(value, recipe.compute_dtype), precision.master_dtype));
    }
    want.update(recipe, step);
    EXPECT_TRUE(
        same_bits(got.gradients.at("weight"), tensor(want.gradient, precision.master_dtype)));
    EXPECT_TRUE(same_bits(got.masters.at("weight"), tensor(want.master, precision.master_dtype)));
    EXPECT_TRUE(same_bits(got.parameters.at("weight"), tensor(want.master, recipe.compute_dtype)));
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_TRUE(same_bits(got.state.at(names[i]).at("weight"),
                            tensor(want.state[i], precision.state_dtype)));
    }
  }
}

TEST(Precision, TheUpdateIsInFp32AndEachStoredValueIsRoundedOnce) {
  for (const at::ScalarType compute : {at::kHalf, at::kBFloat16}) {
    for (const at::ScalarType master : {at::kFloat, compute}) {
      for (const at::ScalarType state : {at::kFloat, compute}) {
        Recipe recipe = recipe_in(compute);
        recipe.precision.master_dtype = master;
        recipe.precision.state_dtype = state;
        SCOPED_TRACE(testing::Message() << compute << " " << master << " " << state);
        expect_update(recipe);
        recipe.optimizer.rule = Rule::Adam;
        expect_update(recipe);
        recipe.optimizer = {.rule = Rule::Sgd, .lr = 0.1, .momentum = 0.9};
        expect_update(recipe);
      }
    }
  }
}

TEST(Precision, ClippingRoundsToTheMastersDtype) {
  for (const at::ScalarType master : {at::kFloat, at::kBFloat16}) {
    Recipe recipe = recipe_in(at::kBFloat16);
    recipe.precision.master_dtype = master;
    const StepRecord open = Driven(recipe).step();
    recipe.gradient_clipping = open.grad_norm / 3;
    const float factor = static_cast<float>(clip_factor(open.grad_norm, recipe.gradient_clipping));
    std::vector<float> want;
    for (const float g : floats(open.gradients.at("weight"))) {
      want.push_back(rounded(g * factor, master));
    }
    const StepRecord clipped = Driven(recipe).step();
    EXPECT_EQ(clipped.grad_norm, open.grad_norm);
    EXPECT_TRUE(same_bits(clipped.gradients.at("weight"), tensor(want, master)));
  }
}

TEST(Precision, TheInfinityNormIsTheLargestAbsoluteValue) {
  Recipe recipe = recipe_in(at::kFloat);
  recipe.precision.infinity_norm = true;
  const at::Tensor x = at::full({kNumel}, 0.5F);
  const auto norm_with = [&](float planted) {
    Driven run(recipe);
    const at::Tensor other = x.clone();
    other[17].fill_(planted);
    run.pass(0, other);
    return run.stepper.step();
  };
  EXPECT_EQ(norm_with(-3).grad_norm, 3);
  EXPECT_EQ(norm_with(0.25F).grad_norm, 0.5);
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    EXPECT_TRUE(norm_with(bad).skipped);
  }
  recipe.gradient_clipping = 1;
  EXPECT_EQ(norm_with(-3).gradients.at("weight")[0].item<float>(),
            0.5F * static_cast<float>(1 / (3 + 1e-6)));
  EXPECT_EQ(norm_with(-1).gradients.at("weight")[0].item<float>(), 0.5F);
  EXPECT_EQ(Driven(recipe).stepper.step().grad_norm, 0) << "nothing was used";
}

TEST(Precision, AGradientThatIsSetIsRoundedToTheMastersDtype) {
  Recipe recipe = recipe_in(at::kBFloat16);
  recipe.precision.master_dtype = at::kBFloat16;
  recipe.precision.loss_scale = {.policy = LossScaleSpec::Policy::Static, .initial = 64};
  Driven run(recipe);
  run.stepper.set("gradient", "weight", uneven(1));
  run.pass(0, uneven(2));
  std::vector<float> want;
  const auto set = floats(uneven(1)), passed = floats(uneven(2));
  for (size_t i = 0; i < set.size(); ++i) {
    const float sum = rounded(set[i], at::kBFloat16) + rounded(passed[i], at::kBFloat16);
    want.push_back(rounded(sum, at::kBFloat16));
  }
  EXPECT_TRUE(same_bits(run.stepper.get("gradient", "weight"), tensor(want, at::kBFloat16)));
}

TEST(Precision, AWrongRecipeIsRefused) {
  const auto refused = [](at::ScalarType compute, auto change) {
    Recipe recipe = recipe_in(compute);
    EXPECT_NO_THROW(Driven{recipe});
    change(recipe);
    EXPECT_THROW(Driven{recipe}, c10::Error);
  };
  refused(at::kBFloat16, [](Recipe& one) { one.precision.master_dtype = at::kHalf; });
  refused(at::kBFloat16, [](Recipe& one) { one.precision.state_dtype = at::kHalf; });
  refused(at::kFloat, [](Recipe& one) { one.precision.master_dtype = at::kBFloat16; });
  refused(at::kFloat, [](Recipe& one) { one.accumulate_dtype = at::kDouble; });
  refused(at::kFloat, [](Recipe& one) { one.precision.communication_dtype = at::kInt; });
  refused(at::kDouble, [](Recipe& one) { one.precision.communication_dtype = at::kHalf; });
  refused(at::kFloat,
          [](Recipe& one) { one.precision.autocast = AutocastSpec{.dtype = at::kFloat}; });
  refused(at::kHalf,
          [](Recipe& one) { one.precision.autocast = AutocastSpec{.dtype = at::kBFloat16}; });
  refused(at::kFloat, [](Recipe& one) { one.precision.predivide_factor = 0; });
  refused(at::kFloat, [](Recipe& one) {
    one.precision.loss_scale = {.policy = LossScaleSpec::Policy::Static, .initial = 1000};
  });
}

// A table of angles in fp32, as for rotary positions.
class Rotary : public Probe {
 public:
  Rotary() : Probe(kNumel) {
    table = register_buffer("table", uneven(5));
    places = register_buffer("places", at::arange(3));
  }
  at::Tensor table, places;
};

TEST(Precision, BuffersKeepTheirDtype) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto model = std::make_shared<Rotary>();
    const Stepper stepper(recipe_in(dtype), model);
    EXPECT_EQ(model->weight.scalar_type(), dtype);
    EXPECT_TRUE(same_bits(model->table, uneven(5)));
    EXPECT_EQ(model->places.scalar_type(), at::kLong);
  }
  const auto model = std::make_shared<Rotary>();
  const Stepper oracle(recipe_in(at::kDouble), model);
  EXPECT_TRUE(same_bits(model->table, uneven(5).to(at::kDouble)));
  EXPECT_EQ(model->places.scalar_type(), at::kLong);
}

}  // namespace
}  // namespace equigrad::reference
