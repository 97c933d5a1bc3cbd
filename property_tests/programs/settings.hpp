// Settings: where a program plays, once as a DeepSpeed configuration and once as the reference's
// recipe.
//
// The two are written separately on purpose: what the engine misreads must not be misread by both.
//
// Invariants: equal settings give equal texts.
// Units: bucket sizes count elements.   Errors: none.
// Depends on: reference/stepper.hpp, nlohmann-json.
#pragma once

#include <string>

#include "property_tests/programs/wishes.hpp"
#include "reference/stepper.hpp"

namespace equigrad::property_tests::programs {

constexpr double kLr = 0.02, kDecay = 0.1;

inline json config_of(const json& setting) {
  json config = {{"train_micro_batch_size_per_gpu", 2},
                 {"gradient_accumulation_steps", setting.at("accumulation")}};
  if (setting.at("clip") != 0.0) config["gradient_clipping"] = setting.at("clip");
  const int rule = setting.at("rule");
  json params = {{"lr", kLr}, {"weight_decay", kDecay}};
  if (rule == 2) params["momentum"] = setting.at("momentum");
  if (rule == 1) params["adam_w_mode"] = false;
  config["optimizer"] = {{"type", rule == 2   ? "SGD"
                                  : rule == 1 ? "Adam"
                                              : "AdamW"},
                         {"params", params}};
  if (setting.at("bf16")) {
    config["bf16"]["enabled"] = true;
    config["data_types"]["grad_accum_dtype"] =
        setting.at("bf16_sums").get<bool>() ? "bf16" : "fp32";
  }
  const auto& bucket = setting.at("bucket");
  json zero = {{"stage", setting.at("stage")},
               {"reduce_bucket_size", bucket},
               {"allgather_bucket_size", bucket}};
  if (setting.at("stage") == 3) {
    zero["stage3_param_persistence_threshold"] = setting.at("persistent");
    zero["stage3_max_reuse_distance"] = setting.at("reuse");
    zero["stage3_prefetch_bucket_size"] = bucket;
  }
  config["zero_optimization"] = zero;
  return config;
}

inline reference::Recipe recipe_of(const json& setting) {
  reference::Recipe recipe;
  recipe.world = setting.at("world");
  recipe.accumulation_steps = setting.at("accumulation");
  const int rule = setting.at("rule");
  recipe.optimizer.rule = rule == 2   ? reference::Rule::Sgd
                          : rule == 1 ? reference::Rule::Adam
                                      : reference::Rule::AdamW;
  recipe.optimizer.lr = kLr;
  recipe.optimizer.weight_decay = kDecay;
  if (rule == 2) recipe.optimizer.momentum = setting.at("momentum");
  recipe.gradient_clipping = setting.at("clip");
  const bool bf16 = setting.at("bf16");
  recipe.compute_dtype = bf16 ? at::kBFloat16 : at::kFloat;
  recipe.accumulate_dtype = bf16 && setting.at("bf16_sums") ? at::kBFloat16 : at::kFloat;
  recipe.order = setting.at("stage").get<int>() <= 1 ? reference::Order::AddThenReduce
                                                     : reference::Order::ReduceThenAdd;
  recipe.absolute_sums = false;
  return recipe;
}

}  // namespace equigrad::property_tests::programs
