// Settings: a case of an overflow, once as the engine's configuration and once as the reference's
// recipe.
//
// Invariants: one["mode"] is fp16, fp16-static, fp16-masters, autocast (fp16 over fp32 parameters)
// or bf16.   Units: power is the exponent of the first scale.   Errors: none of its own.
// Depends on: engine/config/config.hpp, conformance/cases/recipe.hpp, reference/stepper.hpp.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "conformance/cases/recipe.hpp"
#include "engine/config/config.hpp"
#include "reference/stepper.hpp"

namespace equigrad::property_tests::overflow {

using nlohmann::json;

struct Mode {
  at::ScalarType compute = at::kFloat;
  at::ScalarType window = at::kFloat;
  at::ScalarType master = at::kFloat;
  bool autocast = false;
  reference::LossScaleSpec::Policy policy = reference::LossScaleSpec::Policy::None;
};

inline Mode mode_of(const json& one) {
  using Policy = reference::LossScaleSpec::Policy;
  const std::string name = one.at("mode");
  const auto window = [&](at::ScalarType own) { return one.at("fp32_sums") ? at::kFloat : own; };
  if (name == "bf16") return {at::kBFloat16, window(at::kBFloat16)};
  if (name == "autocast") return {.autocast = true, .policy = Policy::GradScaler};
  if (name == "fp16-masters") {
    return {.compute = at::kHalf,
            .window = at::kHalf,
            .master = at::kHalf,
            .policy = Policy::DeepSpeed};
  }
  const bool fixed = name == "fp16-static";
  return {.compute = at::kHalf,
          .window = window(at::kHalf),
          .policy = fixed ? Policy::Static : Policy::DeepSpeed};
}

inline DataType name_of(at::ScalarType type) {
  return type == at::kFloat ? DataType::Fp32 : type == at::kHalf ? DataType::Fp16 : DataType::Bf16;
}

inline LossScaleConfig scale_of(const json& one, reference::LossScaleSpec::Policy policy) {
  using Policy = reference::LossScaleSpec::Policy;
  using Config = LossScaleConfig::Policy;
  LossScaleConfig scale;
  scale.policy = policy == Policy::None        ? Config::None
                 : policy == Policy::Static    ? Config::Static
                 : policy == Policy::DeepSpeed ? Config::DeepSpeed
                                               : Config::GradScaler;
  scale.initial_scale_power = one.at("power");
  scale.static_scale = std::ldexp(1.0, one.at("power").get<int>());
  scale.loss_scale_window = one.at("window");
  scale.hysteresis = one.at("hysteresis");
  scale.consecutive_hysteresis = one.at("consecutive");
  return scale;
}

inline EngineConfig config_of(const json& one) {
  EngineConfig config;
  const Mode mode = mode_of(one);
  config.gradient_accumulation_steps = one.at("accumulation");
  config.train_batch_size = config.gradient_accumulation_steps * one.at("world").get<int>();
  auto& precision = config.precision;
  precision.param = name_of(mode.compute);
  precision.accumulate = name_of(mode.window);
  precision.master = name_of(mode.master);
  precision.loss_scale = scale_of(one, mode.policy);
  precision.autocast.enabled = mode.autocast;
  precision.autocast.dtype = DataType::Fp16;
  config.gradient_clipping = one.at("clip");
  if (one.at("largest")) config.gradient_norm = NormType::Infinity;
  config.optimizer.kind = static_cast<OptimizerConfig::Kind>(one.at("rule").get<int>());
  config.optimizer.lr = 0.02;
  config.optimizer.momentum = 0.9;
  if (one.at("warmup")) {
    config.scheduler.emplace();
    config.scheduler->warmup_max_lr = {0.03};
    config.scheduler->warmup_num_steps = 5;
  }
  config.zero.stage = one.at("stage");
  config.zero.reduce_bucket_size = config.zero.allgather_bucket_size = one.at("bucket");
  config.zero.stage3_param_persistence_threshold = one.at("persistent");
  return config;
}

inline reference::Recipe recipe_of(const json& one, const EngineConfig& config) {
  auto recipe = conformance::recipe_of(config, one.at("world"), one.at("seed"));
  const Mode mode = mode_of(one);
  recipe.compute_dtype = mode.compute;
  recipe.accumulate_dtype = mode.window;
  auto& precision = recipe.precision;
  precision.master_dtype = mode.master;
  precision.infinity_norm = one.at("largest");
  auto& scale = precision.loss_scale;
  scale = {mode.policy,           std::ldexp(1.0, one.at("power").get<int>()),
           one.at("window"),      one.at("hysteresis"),
           one.at("consecutive"), 1.0};
  if (mode.policy == reference::LossScaleSpec::Policy::None) scale.initial = 1;
  if (mode.autocast) precision.autocast = reference::AutocastSpec{at::kHalf};
  return recipe;
}

}  // namespace equigrad::property_tests::overflow
