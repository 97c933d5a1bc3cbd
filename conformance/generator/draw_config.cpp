// Keys that numbers depend on.
#include <algorithm>
#include <cmath>

#include "conformance/generator/draw.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;

// A number of few digits or of many, log-uniform.
double any_number(Dice& dice, double least, double most) {
  const double part = static_cast<double>(dice.below(1 << 20)) / (1 << 20);
  const double value = least * std::pow(most / least, part);
  if (dice.coin()) return value;
  const double unit = std::pow(10.0, std::floor(std::log10(value)));
  return std::max(least, std::floor(value / unit) * unit);
}

template <class Value>
void maybe(Dice& dice, json& section, const char* key, Value value) {
  if (dice.coin()) section[key] = value;
}

json optimizer(Dice& dice) {
  json params = json::object();
  const auto type = dice.pick<std::string>({"SGD", "SGD", "Adam", "AdamW", "AdamW"});
  const bool is_sgd = type == "SGD";
  maybe(dice, params, "lr", dice.one_in(12) ? 0.0 : any_number(dice, 1e-5, is_sgd ? 0.3 : 0.03));
  if (dice.coin()) params["weight_decay"] = dice.one_in(4) ? 0.0 : any_number(dice, 1e-4, 0.5);
  if (is_sgd) {
    if (dice.coin()) params["momentum"] = dice.pick<double>({0, 0.5, 0.9, 0.99, 1.0});
    const bool has_momentum = params.value("momentum", 0.0) > 0;
    const bool looks_ahead = has_momentum && dice.one_in(3);
    if (looks_ahead || dice.one_in(4)) params["nesterov"] = looks_ahead;
    if (!looks_ahead) maybe(dice, params, "dampening", dice.pick<double>({0, 0.1, 0.5, 1.0}));
  } else {
    if (dice.coin())
      params["betas"] = {dice.pick<double>({0, 0.5, 0.8, 0.9, 0.95}),
                         dice.pick<double>({0, 0.9, 0.95, 0.99, 0.999})};
    maybe(dice, params, "eps", dice.pick<double>({1e-12, 1e-8, 1e-6, 1e-3, 0.1}));
    if (dice.one_in(4)) params["torch_adam"] = dice.coin();
    if (dice.one_in(3)) params["adam_w_mode"] = type == "AdamW" || dice.coin();
  }
  json section = {{"type", type}};
  if (!params.empty() || dice.coin()) section["params"] = params;
  return section;
}

// One value, or one for each group.
json rates(Dice& dice, std::size_t groups, double least, double most) {
  if (groups == 1 || dice.coin()) return any_number(dice, least, most);
  json list = json::array();
  for (std::size_t i = 0; i < groups; ++i) list.push_back(any_number(dice, least, most));
  return list;
}

void warm_up(Dice& dice, const std::string& type, std::size_t groups, json& params) {
  const auto steps = dice.between(1, 6);
  if (dice.one_in(3) == false) params["warmup_num_steps"] = steps;
  if (type != "WarmupCosineLR") {
    if (dice.coin()) params["warmup_min_lr"] = rates(dice, groups, 1e-6, 1e-3);
    if (dice.coin()) params["warmup_max_lr"] = rates(dice, groups, 1e-3, 0.1);
  } else {
    maybe(dice, params, "warmup_min_ratio", dice.pick<double>({0, 0.1, 0.5}));
    maybe(dice, params, "cos_min_ratio", dice.pick<double>({0, 1e-4, 0.25}));
  }
  maybe(dice, params, "warmup_type", dice.pick<std::string>({"log", "linear"}));
  if (type == "WarmupLR") return;
  const int64_t least = params.value("warmup_num_steps", int64_t{1000});
  params["total_num_steps"] = least + dice.pick<int64_t>({0, 1, 2, 5, 100});
}

void one_cycle(Dice& dice, std::size_t groups, bool is_sgd, json& params) {
  params["cycle_min_lr"] = rates(dice, groups, 1e-5, 1e-3);
  params["cycle_max_lr"] = rates(dice, groups, 1e-3, 0.1);
  if (!dice.one_in(4)) params["cycle_first_step_size"] = dice.between(1, 5);
  maybe(dice, params, "cycle_second_step_size", dice.between(0, 5));
  maybe(dice, params, "cycle_first_stair_count", dice.between(0, 3));
  maybe(dice, params, "cycle_second_stair_count", dice.between(0, 3));
  maybe(dice, params, "decay_step_size", dice.between(0, 3));
  maybe(dice, params, "decay_lr_rate", dice.pick<double>({0, 0.1, 0.5}));
  if (is_sgd) {
    maybe(dice, params, "cycle_momentum", false);
    return;
  }
  maybe(dice, params, "cycle_momentum", dice.coin());
  maybe(dice, params, "cycle_min_mom", dice.pick<double>({0.0, 0.8, 0.85}));
  maybe(dice, params, "cycle_max_mom", dice.pick<double>({0.9, 0.95}));
  maybe(dice, params, "decay_mom_rate", dice.pick<double>({0.0, 0.001}));
}

json scheduler(Dice& dice, std::size_t groups, bool is_sgd) {
  const auto type = dice.pick<std::string>(
      {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"});
  json params = json::object();
  if (type == "OneCycle") {
    one_cycle(dice, groups, is_sgd, params);
  } else if (type == "LRRangeTest") {
    if (dice.coin()) params["lr_range_test_min_lr"] = rates(dice, groups, 1e-5, 1e-2);
    if (!dice.one_in(4)) params["lr_range_test_step_size"] = dice.between(1, 4);
    maybe(dice, params, "lr_range_test_step_rate", dice.pick<double>({0.0, 0.5, 1.0, 5.0}));
    maybe(dice, params, "lr_range_test_staircase", dice.coin());
  } else {
    warm_up(dice, type, groups, params);
  }
  if (dice.one_in(4)) params["last_batch_iteration"] = dice.between(-1, 4);
  json section = {{"type", type}};
  if (!params.empty() || dice.coin()) section["params"] = params;
  return section;
}

void fp16(Dice& dice, json& config) {
  auto& section = config["fp16"] = {{"enabled", true}};
  if (dice.one_in(3)) {
    section["loss_scale"] = std::ldexp(1.0, static_cast<int>(dice.between(0, 12)));
  } else {
    maybe(dice, section, "loss_scale", 0);
    section["initial_scale_power"] = dice.between(4, 14);
    maybe(dice, section, "loss_scale_window", dice.between(1, 3));
    maybe(dice, section, "hysteresis", dice.between(1, 3));
    maybe(dice, section, "consecutive_hysteresis", dice.coin());
    maybe(dice, section, "min_loss_scale", dice.pick<double>({0.25, 1, 2}));
  }
  if (dice.one_in(4)) maybe(dice, section, "auto_cast", false);
  if (dice.one_in(4))
    section[dice.coin() ? "fp16_master_weights_and_grads" : "fp16_master_weights_and_gradients"] =
        dice.coin();
}

void bf16(Dice& dice, json& config) {
  auto& section = config[dice.one_in(4) ? "bfloat16" : "bf16"] = {{"enabled", true}};
  maybe(dice, section, "check_grad_overflow", true);
  maybe(dice, section, "immediate_grad_update", dice.coin());
  const bool has_masters = dice.one_in(4);
  if (has_masters || dice.one_in(6)) section["bf16_master_weights_and_grads"] = has_masters;
  if (!has_masters) {
    if (dice.one_in(6)) section["bf16_optimizer_states"] = false;
    return;
  }
  if (dice.coin())
    section["bf16_optimizer_states"] = true;
  else
    config["zero_optimization"]["offload_optimizer"]["device"] = "cpu";
}

bool has_16_bit_masters(const json& config) {
  for (const char* name : {"bf16", "bfloat16", "fp16"})
    if (config.contains(name))
      for (const char* key : {"bf16_master_weights_and_grads", "fp16_master_weights_and_grads",
                              "fp16_master_weights_and_gradients"})
        if (config[name].value(key, false)) return true;
  return false;
}

void autocast(Dice& dice, json& config, const std::string& param) {
  auto& section = config["torch_autocast"] = {{"enabled", true}};
  if (param != "fp32")
    maybe(dice, section, "dtype", param == "bf16" ? "bfloat16" : "float16");
  else
    maybe(dice, section, "dtype", dice.pick<std::string>({"bf16", "bfloat16", "fp16", "float16"}));
  if (dice.one_in(3))
    section["lower_precision_safe_modules"] = dice.pick<json>(
        {json::array(), {"Linear"}, {"torch.nn.Linear", "torch.nn.Conv2d"}, {"Conv2d"}});
}

// What a level decides may be said, too.
void apex_decides(Dice& dice, const std::string& level, json& section) {
  if (dice.one_in(3)) section["patch_torch_functions"] = level == "O1";
  if (level == "O1") return;
  if (dice.one_in(3)) section["master_weights"] = level == "O2";
  if (dice.one_in(3)) section["keep_batchnorm_fp32"] = level == "O0";
}

// Gives the type of the parameters.
std::string precision(Dice& dice, json& config) {
  const auto kind = dice.pick<std::string>({"fp32", "fp32", "fp32", "bf16", "bf16", "bf16", "fp16",
                                            "fp16", "fp16", "autocast", "autocast", "amp"});
  std::string param = "fp32";
  if (kind == "bf16") {
    bf16(dice, config);
    param = "bf16";
    if (dice.one_in(6)) autocast(dice, config, param);
  } else if (kind == "fp16") {
    fp16(dice, config);
    param = "fp16";
  } else if (kind == "autocast") {
    autocast(dice, config, param);
  } else if (kind == "amp") {
    auto& section = config["amp"] = {{"enabled", true}};
    const auto level = dice.pick<std::string>({"", "O0", "O1", "O2"});
    if (!level.empty()) section["opt_level"] = level;
    if (level == "O0")
      maybe(dice, section, "loss_scale", 1);
    else if (dice.coin())
      section["loss_scale"] = dice.pick<json>({"dynamic", 128, 1024.0});
    if (level != "O0" && !section.value("loss_scale", json("dynamic")).is_number())
      maybe(dice, section, "max_loss_scale", 16777216.0);
    apex_decides(dice, level.empty() ? "O1" : level, section);
    if (level == "O2") param = "fp16";
  } else if (dice.one_in(8)) {
    config[dice.pick<std::string>({"bf16", "bfloat16", "fp16", "amp", "torch_autocast"})] = {
        {"enabled", false}};
  }
  return param;
}

void types(Dice& dice, const std::string& param, json& config) {
  if (dice.one_in(5)) config["data_types"]["param_dtype"] = param;
  const bool is_exact = config.value("reduction", "") == "exact";
  if (dice.one_in(3)) {
    auto accumulate = dice.coin() ? "fp32" : param;
    if (has_16_bit_masters(config)) accumulate = param;
    if (is_exact) accumulate = "fp32";
    config["data_types"]["grad_accum_dtype"] = accumulate;
  }
  if (dice.one_in(6))
    config["communication_data_type"] = dice.pick<std::string>({"fp32", "bf16", "fp16"});
}

void averaging(Dice& dice, json& config) {
  switch (dice.below(6)) {
    case 0:
      config["prescale_gradients"] = !dice.one_in(4);
      break;
    case 1:
      config["gradient_predivide_factor"] = dice.pick<double>({1.0, 2.0, 3.0, 0.5, 7.0});
      break;
    case 2:
      config["gradient_allreduce_op"] = dice.pick<std::string>({"mean", "sum"});
      break;
    default:
      break;
  }
}

void clipping(Dice& dice, json& config) {
  switch (dice.below(4)) {
    case 0:
      maybe(dice, config, "gradient_clipping", 0.0);
      break;
    case 1:
      config["gradient_clipping"] = 1e6;
      break;
    default:
      config["gradient_clipping"] = "half";
      break;
  }
  if (dice.one_in(3)) config["gradient_norm_type"] = dice.pick<json>({2, "inf"});
}

// Any two of the three, or one of the sizes.
void batch(Dice& dice, int data, int accumulation, json& config) {
  const int64_t micro = dice.between(1, 3);
  const int64_t train = micro * accumulation * data;
  const auto kind = dice.below(4);
  if (kind != 0) config["train_micro_batch_size_per_gpu"] = micro;
  if (kind != 1) config["train_batch_size"] = train;
  if (kind != 2 || accumulation == 1) {
    if (accumulation != 1 || dice.coin() || kind == 0)
      config["gradient_accumulation_steps"] = accumulation;
  }
  // Without accumulation it is derived from the two sizes; from one of them alone it is 1.
  if (kind == 1) config["gradient_accumulation_steps"] = accumulation;
}

}  // namespace

nlohmann::json draw_config(Dice& dice, int data, int accumulation, std::size_t groups) {
  json config = json::object();
  batch(dice, data, accumulation, config);
  config["optimizer"] = optimizer(dice);
  const bool is_sgd = config["optimizer"]["type"] == "SGD";
  if (dice.one_in(3)) config["scheduler"] = scheduler(dice, groups, is_sgd);
  if (dice.one_in(5)) config["reduction"] = dice.pick<std::string>({"exact", "exact", "pinned"});
  types(dice, precision(dice, config), config);
  averaging(dice, config);
  clipping(dice, config);
  return config;
}

int least_stage(const nlohmann::json& config) {
  const bool is_bf16 = config.contains("bf16") || config.contains("bfloat16");
  const auto zero = config.value("zero_optimization", json::object());
  return (is_bf16 && has_16_bit_masters(config)) || zero.contains("offload_optimizer") ? 1 : 0;
}

}  // namespace equigrad::conformance
