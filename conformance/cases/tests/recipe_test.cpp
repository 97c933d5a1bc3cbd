// The two recipes of a case are written apart; here they meet: what the engine's parser makes of
// the one must be the other.
#include "conformance/cases/recipe.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "conformance/cases/linear_model.hpp"
#include "conformance/cases/model_groups.hpp"
#include "conformance/cases/overflowing_model.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/on_rank/program.hpp"

namespace equigrad::conformance {
namespace {

void expect_equal(const reference::Recipe& a, const reference::Recipe& b) {
  EXPECT_EQ(a.accumulation_steps, b.accumulation_steps);
  EXPECT_EQ(a.optimizer.rule, b.optimizer.rule);
  EXPECT_EQ(a.optimizer.lr, b.optimizer.lr);
  EXPECT_EQ(a.optimizer.momentum, b.optimizer.momentum);
  EXPECT_EQ(a.optimizer.weight_decay, b.optimizer.weight_decay);
  EXPECT_EQ(a.gradient_clipping, b.gradient_clipping);
  EXPECT_EQ(a.compute_dtype, b.compute_dtype);
  EXPECT_EQ(a.accumulate_dtype, b.accumulate_dtype);
  EXPECT_EQ(a.order, b.order);
  EXPECT_EQ(a.precision.master_dtype, b.precision.master_dtype);
  EXPECT_EQ(a.precision.state_dtype, b.precision.state_dtype);
  EXPECT_EQ(a.precision.communication_dtype, b.precision.communication_dtype);
  EXPECT_EQ(a.precision.averaging, b.precision.averaging);
  EXPECT_EQ(a.precision.infinity_norm, b.precision.infinity_norm);
  if (a.precision.averaging == reference::Averaging::Around)
    EXPECT_EQ(a.precision.predivide_factor, b.precision.predivide_factor);
  ASSERT_EQ(a.precision.autocast.has_value(), b.precision.autocast.has_value());
  if (a.precision.autocast) {
    EXPECT_EQ(a.precision.autocast->dtype, b.precision.autocast->dtype);
    EXPECT_EQ(a.precision.autocast->safe_modules, b.precision.autocast->safe_modules);
  }
  const auto &scale = a.precision.loss_scale, &other = b.precision.loss_scale;
  ASSERT_EQ(scale.policy, other.policy);
  using Policy = reference::LossScaleSpec::Policy;
  if (scale.policy != Policy::None) EXPECT_EQ(scale.initial, other.initial);
  if (scale.policy == Policy::DeepSpeed) EXPECT_EQ(scale.hysteresis, other.hysteresis);
  if (scale.policy == Policy::DeepSpeed || scale.policy == Policy::GradScaler)
    EXPECT_EQ(scale.window, other.window);
}

TEST(Recipe, TheParserReadsWhatTheTwinDoes) {
  const auto model = reference::make_model("conv", 1);
  std::set<std::string> seen;
  for (const auto& spec : default_matrix()) {
    if (spec.is_refused() || !seen.insert(spec.tuple() + std::to_string(spec.stage)).second)
      continue;
    SCOPED_TRACE(spec.id());
    const double threshold = spec.clip == Clip::Off ? 0 : 0.5;
    const auto config = parse_config(config_text(spec, threshold, *model), spec.world);
    expect_equal(recipe_of(spec, 1, threshold, order_of(spec)), recipe_of(config, spec.world, 1));
    EXPECT_EQ(config.offload_optimizer.to_cpu,
              spec.precision == Precision::Offload || spec.precision == Precision::Bf16Masters);
  }
}

TEST(Recipe, EveryModelMeetsBothSizesOfBucketsAtEveryStage) {
  std::map<std::pair<std::string, int>, std::set<bool>> sizes;
  std::set<std::pair<bool, bool>> with_momentum;
  std::map<std::string, std::shared_ptr<reference::Model>> models;
  for (const auto& spec : default_matrix()) {
    if (spec.is_refused()) continue;
    auto& model = models[spec.model];
    if (!model) model = make_case_model(spec.model, 1);
    const auto config = parse_config(config_text(spec, 0, *model), spec.world);
    const bool is_small = config.zero.reduce_bucket_size < 5000;
    sizes[{spec.model, spec.stage}].insert(is_small);
    if (spec.optimizer == Rule::Sgd)
      with_momentum.insert({is_small, config.optimizer.momentum != 0});
  }
  EXPECT_EQ(sizes.size(), 36u);
  for (const auto& [at, seen] : sizes) EXPECT_EQ(seen.size(), 2u) << at.first << at.second;
  EXPECT_EQ(with_momentum.size(), 4u);
}

TEST(Recipe, WhatIsNotDefinedIsRefusedByName) {
  const auto model = reference::make_model("conv", 1);
  int refused = 0;
  for (const auto precision : precisions()) {
    CaseSpec spec;
    spec.precision = precision;
    if (!spec.is_refused()) continue;
    ++refused;
    try {
      parse_config(config_text(spec, 0, *model), 1);
      ADD_FAILURE() << word(precision);
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(refusal_keys(precision, 0).at(0)), std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(refused, 4);
}

// In every precision whose scale changes by itself: without an overflow, one in step 2, in step 3.
TEST(Recipe, DynamicScalesOverflowInSomeCasesOfTheDefaultMatrix) {
  std::map<std::string, std::set<int>> steps;
  for (const auto& spec : default_matrix()) {
    const auto overflowing = overflowing_batch(spec);
    EXPECT_TRUE(!overflowing || scaling_of(spec.precision) == Scaling::Dynamic) << spec.id();
    if (overflowing) {
      EXPECT_LT(overflowing->rank, spec.data());
      EXPECT_LT(overflowing->micro_batch, spec.accumulation);
    }
    if (scaling_of(spec.precision) == Scaling::Dynamic)
      steps[word(spec.precision)].insert(overflowing ? overflowing->step : 0);
  }
  EXPECT_EQ(steps.size(), 4u);
  for (const auto& [precision, seen] : steps)
    EXPECT_EQ(seen, (std::set<int>{0, 1, 2})) << precision;
}

TEST(OverflowingModel, HasTheParametersOfTheModelInItsOrderAndItsNumbers) {
  const reference::Data data(reference::read_text({find_data("", false).text}), {});
  for (const std::string name : {"gpt", "irregular"}) {
    const auto quiet = reference::make_model(name, 3);
    const auto overflowing = std::make_shared<OverflowingModel>(reference::make_model(name, 3));
    const auto a = reference::unique_parameters(*quiet),
               b = reference::unique_parameters(*overflowing);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].first, b[i].first);
      EXPECT_EQ(a[i].second.requires_grad(), b[i].second.requires_grad());
    }
    EXPECT_EQ(quiet->named_buffers().keys(), overflowing->named_buffers().keys());
    const auto batch = data.make_batch(name, {.seed = 3, .step = 0, .rank = 0, .micro_batch = 0});
    EXPECT_TRUE(at::equal(quiet->loss(batch), overflowing->loss(batch)));
    overflowing->set_loss_factor(kOverflowFactor);
    EXPECT_GT(overflowing->loss(batch).item<double>(), 1e29);
  }
}

TEST(ModelGroups, NameTheModulesAsPythonDoes) {
  const auto gpt = reference::make_model("gpt", 1), conv = reference::make_model("conv", 1);
  const auto of_gpt = module_types(*gpt);
  using Types = std::set<std::string>;
  EXPECT_EQ(of_gpt.at("block0.qkv.weight"), Types{"torch.nn.Linear"});
  EXPECT_EQ(of_gpt.at("token.weight"), Types{"torch.nn.Embedding"});
  EXPECT_EQ(of_gpt.at("norm.bias"), Types{"torch.nn.LayerNorm"});
  EXPECT_EQ(of_gpt.at("position").begin()->find("torch.nn"), std::string::npos);
  const auto of_conv = module_types(*conv);
  EXPECT_EQ(of_conv.at("second.bias"), Types{"torch.nn.Conv2d"});
  EXPECT_EQ(of_conv.at("head.weight").size(), 2u);  // tied to a module of another type
}

TEST(ModelGroups, HoldEveryParameterOnce) {
  const auto model = reference::make_model("irregular", 1);
  std::map<std::string, int> times;
  for (const auto& group : groups_of(*model))
    for (const auto& parameter : group.parameters) ++times[parameter.name];
  EXPECT_EQ(times.size(), reference::unique_parameters(*model).size());
  for (const auto& [name, count] : times) EXPECT_EQ(count, 1) << name;
}

TEST(Recipe, KnobsReachTheEnginesConfigurationAndNothingElseDoes) {
  const CaseSpec spec;
  const auto model = reference::make_model(spec.model, 1);
  const auto text = config_text(spec, 0, *model);
  const auto plain = parse_config(text, 1);
  EXPECT_EQ(parse_config(with_knobs(text, nlohmann::json::object()), 1), plain);
  auto turned =
      parse_config(with_knobs(text, {{"zero_optimization", {{"reduce_bucket_size", 7}}}}), 1);
  EXPECT_EQ(turned.zero.reduce_bucket_size, 7);
  turned.zero.reduce_bucket_size = plain.zero.reduce_bucket_size;
  EXPECT_EQ(turned, plain);
}

}  // namespace
}  // namespace equigrad::conformance
