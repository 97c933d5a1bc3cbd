// Every precision mode on every model of the zoo, three steps of it; and what a scale must not do.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reference/tests/same_bits.hpp"
#include "reference/tests/sample_data.hpp"
#include "reference/trainer.hpp"

namespace equigrad::reference {
namespace {

using conformance::same_bits;
using conformance::sample_data;
using Policy = LossScaleSpec::Policy;

using Change = std::function<void(Recipe&)>;

// The modes a user can ask for; the first in each family leaves the rest at its default.
const std::map<std::string, Change>& modes() {
  static const auto narrow = [](at::ScalarType dtype, bool masters, bool states) {
    return [=](Recipe& recipe) {
      recipe.compute_dtype = dtype;
      if (masters) recipe.precision.master_dtype = dtype;
      if (states) recipe.precision.state_dtype = dtype;
      if (dtype == at::kHalf) recipe.precision.loss_scale = {.policy = Policy::DeepSpeed};
    };
  };
  static const auto cast = [](at::ScalarType dtype, at::ScalarType compute) {
    return [=](Recipe& recipe) {
      recipe.compute_dtype = compute;
      recipe.precision.autocast = AutocastSpec{.dtype = dtype};
      if (dtype == at::kHalf) recipe.precision.loss_scale = {.policy = Policy::GradScaler};
    };
  };
  static const std::map<std::string, Change> kModes = {
      {"fp32", [](Recipe&) {}},
      {"fp64", [](Recipe& recipe) { recipe.compute_dtype = at::kDouble; }},
      {"bf16", narrow(at::kBFloat16, false, false)},
      {"bf16 masters", narrow(at::kBFloat16, true, false)},
      {"bf16 masters and states", narrow(at::kBFloat16, true, true)},
      {"fp16", narrow(at::kHalf, false, false)},
      {"fp16 masters", narrow(at::kHalf, true, false)},
      {"autocast bf16", cast(at::kBFloat16, at::kFloat)},
      {"autocast bf16 of bf16", cast(at::kBFloat16, at::kBFloat16)},
      {"autocast fp16", cast(at::kHalf, at::kFloat)},
      {"autocast fp16 of fp16", cast(at::kHalf, at::kHalf)}};
  return kModes;
}

std::vector<StepRecord> run(const Recipe& recipe) {
  Trainer trainer(recipe, sample_data());
  std::vector<StepRecord> records;
  for (int64_t i = 0; i < recipe.steps; ++i) records.push_back(trainer.train_step());
  return records;
}

Recipe recipe_of(const std::string& model, SumOrder order) {
  Recipe recipe;
  recipe.model = model;
  recipe.world = 2;
  recipe.accumulation_steps = 2;
  recipe.optimizer = {.lr = 0.01, .weight_decay = 0.1};
  recipe.gradient_clipping = 1;
  recipe.order = order;
  return recipe;
}

void expect_dtypes(const Recipe& recipe, const StepRecord& record) {
  const bool oracle = recipe.compute_dtype == at::kDouble;
  const auto master = oracle ? at::kDouble : recipe.precision.master_dtype;
  for (const auto& [name, parameter] : record.parameters) {
    EXPECT_EQ(parameter.scalar_type(), recipe.compute_dtype) << name;
    EXPECT_TRUE(parameter.isfinite().all().item<bool>()) << name;
    if (!record.masters.contains(name)) continue;
    EXPECT_EQ(record.masters.at(name).scalar_type(), master) << name;
    for (const auto& [state, tensors] : record.state) {
      EXPECT_EQ(tensors.at(name).scalar_type(), oracle ? at::kDouble : recipe.precision.state_dtype)
          << name;
    }
    if (record.gradients.contains(name)) {
      EXPECT_EQ(record.gradients.at(name).scalar_type(), master) << name;
    }
  }
  for (const at::Tensor& loss : record.losses) {
    EXPECT_EQ(loss.scalar_type(), oracle ? at::kDouble : at::kFloat);
    EXPECT_LT(loss.item<double>(), 20) << "unscaled";
  }
}

TEST(Modes, EachRunsThreeStepsOfEveryModel) {
  for (const auto& [mode, change] : modes()) {
    for (const std::string& model : model_names()) {
      for (const SumOrder order :
           {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd, SumOrder::Fp64}) {
        SCOPED_TRACE(mode + " of " + model);
        Recipe recipe = recipe_of(model, order);
        change(recipe);
        TensorMap before;
        for (const StepRecord& record : run(recipe)) {
          EXPECT_FALSE(record.skipped);
          EXPECT_GT(record.grad_norm, 0);
          expect_dtypes(recipe, record);
          EXPECT_FALSE(!before.empty() && same_bits(before, record.masters)) << "nothing moved";
          before = record.masters;
        }
      }
    }
  }
}

TEST(Modes, EachRepeatsItselfAndDiffersFromTheOthers) {
  std::vector<std::pair<std::string, TensorMap>> seen;
  for (const auto& [mode, change] : modes()) {
    Recipe recipe = recipe_of("gpt", SumOrder::AddThenReduce);
    change(recipe);
    const TensorMap last = run(recipe).back().masters;
    EXPECT_TRUE(same_bits(run(recipe).back().masters, last)) << mode;
    for (const auto& [other, masters] : seen)
      EXPECT_FALSE(same_bits(masters, last)) << mode << other;
    seen.emplace_back(mode, last);
  }
}

// Everything but the recorded scale.
void expect_same(const std::vector<StepRecord>& got, const std::vector<StepRecord>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(same_bits(got[i].gradients, want[i].gradients)) << "step " << i;
    EXPECT_TRUE(same_bits(got[i].masters, want[i].masters)) << "step " << i;
    EXPECT_TRUE(same_bits(got[i].parameters, want[i].parameters)) << "step " << i;
    EXPECT_TRUE(same_bits(got[i].state.at("exp_avg"), want[i].state.at("exp_avg"))) << "step " << i;
    EXPECT_EQ(got[i].grad_norm, want[i].grad_norm) << "step " << i;
    for (size_t k = 0; k < want[i].losses.size(); ++k) {
      EXPECT_TRUE(same_bits(got[i].losses[k], want[i].losses[k])) << "step " << i;
    }
  }
}

TEST(Modes, APowerOfTwoScaleChangesNoBit) {
  for (const std::string& model : model_names()) {
    for (const char* mode : {"fp32", "bf16", "autocast bf16"}) {
      for (const SumOrder order :
           {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd, SumOrder::Fp64}) {
        SCOPED_TRACE(model + " " + mode);
        Recipe recipe = recipe_of(model, order);
        modes().at(mode)(recipe);
        const auto want = run(recipe);
        EXPECT_EQ(want[0].loss_scale, 1);
        for (const double scale : {0x1p10, 0x1p-6}) {
          recipe.precision.loss_scale = {.policy = Policy::Static, .initial = scale};
          const auto got = run(recipe);
          expect_same(got, want);
          EXPECT_EQ(got[2].loss_scale, scale);
        }
        // One that grows on the way.
        recipe.precision.loss_scale = {.policy = Policy::GradScaler, .initial = 4, .window = 1};
        const auto grown = run(recipe);
        expect_same(grown, want);
        EXPECT_EQ(grown[2].loss_scale, 16);
      }
    }
  }
}

TEST(Modes, AnOverflowSkipsTheStepAndOnlyTheScaleMoves) {
  Recipe recipe = recipe_of("vision", SumOrder::ReduceThenAdd);
  recipe.compute_dtype = at::kHalf;
  recipe.steps = 40;
  recipe.precision.loss_scale = {.policy = Policy::DeepSpeed, .initial = 0x1p30, .hysteresis = 1};
  const auto records = run(recipe);
  EXPECT_TRUE(records.front().skipped);
  EXPECT_FALSE(records.back().skipped);
  const auto start = make_model("vision", recipe.seed);
  for (size_t i = 0; i < records.size(); ++i) {
    if (i > 0) {
      EXPECT_EQ(records[i].loss_scale,
                records[i - 1].loss_scale / (records[i - 1].skipped ? 2 : 1));
    }
    if (!records[i].skipped) continue;
    const TensorMap& before = i == 0 ? records[i].masters : records[i - 1].masters;
    EXPECT_TRUE(same_bits(records[i].masters, before)) << i;
    EXPECT_EQ(records[i].step_count.at("mix.weight"),
              i == 0 ? 0 : records[i - 1].step_count.at("mix.weight"));
  }
  EXPECT_TRUE(same_bits(records[0].masters.at("mix.weight"),
                        start->named_parameters()["mix.weight"].detach()));
}

}  // namespace
}  // namespace equigrad::reference
