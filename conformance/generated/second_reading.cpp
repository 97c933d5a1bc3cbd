#include "conformance/generated/second_reading.hpp"

#include <cmath>
#include <string>

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using reference::LossScaleSpec;
using reference::ScheduleSpec;

json section(const json& config, const char* name) { return config.value(name, json::object()); }

// A section that counts: it is there, and enabled.
json enabled(const json& config, const char* name) {
  const auto found = section(config, name);
  return found.value("enabled", false) ? found : json::object();
}

at::ScalarType type_named(const std::string& name) {
  if (name == "bf16" || name == "bfloat16") return at::kBFloat16;
  if (name == "fp16" || name == "float16" || name == "half") return at::kHalf;
  return at::kFloat;
}

reference::OptimizerSpec optimizer_of(const json& config) {
  const auto written = section(config, "optimizer");
  const auto params = section(written, "params");
  const std::string type = written.at("type");
  reference::OptimizerSpec spec;
  spec.lr = params.value("lr", 1e-3);
  if (type == "SGD") {
    spec.rule = reference::Rule::Sgd;
    spec.weight_decay = params.value("weight_decay", 0.0);
    spec.momentum = params.value("momentum", 0.0);
    spec.dampening = params.value("dampening", 0.0);
    spec.nesterov = params.value("nesterov", false);
    return spec;
  }
  const bool decouples = type == "AdamW" || params.value("adam_w_mode", true);
  spec.rule = decouples ? reference::Rule::AdamW : reference::Rule::Adam;
  const bool is_torchs = params.value("torch_adam", false);
  spec.weight_decay = params.value("weight_decay", decouples && is_torchs ? 0.01 : 0.0);
  if (params.contains("betas")) {
    spec.beta1 = params["betas"][0];
    spec.beta2 = params["betas"][1];
  } else {
    spec.beta1 = 0.9;
    spec.beta2 = 0.999;
  }
  spec.eps = params.value("eps", 1e-8);
  return spec;
}

LossScaleSpec fixed_scale(double scale) {
  return {.policy = LossScaleSpec::Policy::Static, .initial = scale};
}

// torch.amp.GradScaler's own settings.
LossScaleSpec grad_scaler() {
  return {.policy = LossScaleSpec::Policy::GradScaler, .initial = 65536, .window = 2000};
}

LossScaleSpec fp16_scale(const json& fp16) {
  if (const double scale = fp16.value("loss_scale", 0.0); scale != 0) return fixed_scale(scale);
  return {.policy = LossScaleSpec::Policy::DeepSpeed,
          .initial = std::ldexp(1.0, fp16.value("initial_scale_power", 16)),
          .window = fp16.value("loss_scale_window", int64_t{1000}),
          .hysteresis = fp16.value("hysteresis", int64_t{2}),
          .consecutive_hysteresis = fp16.value("consecutive_hysteresis", false),
          .minimum = fp16.value("min_loss_scale", 1.0)};
}

void read_fp16(const json& config, reference::Recipe& recipe) {
  const auto fp16 = enabled(config, "fp16");
  if (fp16.empty()) return;
  recipe.compute_dtype = at::kHalf;
  recipe.precision.loss_scale = fp16_scale(fp16);
  for (const char* key : {"fp16_master_weights_and_grads", "fp16_master_weights_and_gradients"})
    if (fp16.value(key, false)) recipe.precision.master_dtype = at::kHalf;
}

void read_bf16(const json& config, reference::Recipe& recipe) {
  auto bf16 = enabled(config, "bf16");
  if (bf16.empty()) bf16 = enabled(config, "bfloat16");
  if (bf16.empty()) return;
  recipe.compute_dtype = at::kBFloat16;
  if (bf16.value("bf16_master_weights_and_grads", false))
    recipe.precision.master_dtype = at::kBFloat16;
  if (bf16.value("bf16_optimizer_states", false)) recipe.precision.state_dtype = at::kBFloat16;
}

void read_autocast(const json& config, reference::Recipe& recipe) {
  const auto autocast = enabled(config, "torch_autocast");
  if (autocast.empty()) return;
  const bool is_plain = recipe.compute_dtype == at::kFloat;
  auto& spec = recipe.precision.autocast.emplace();
  spec.dtype = is_plain ? at::kBFloat16 : recipe.compute_dtype;
  if (autocast.contains("dtype")) spec.dtype = type_named(autocast["dtype"]);
  if (autocast.contains("lower_precision_safe_modules")) {
    spec.safe_modules.clear();
    for (std::string name : autocast["lower_precision_safe_modules"]) {
      const std::string torch = "torch.nn.";
      if (name.starts_with(torch)) name = name.substr(torch.size());
      spec.safe_modules.push_back(name);
    }
  }
  if (is_plain && spec.dtype == at::kHalf) recipe.precision.loss_scale = grad_scaler();
}

// apex: O1 casts around operators, O2 trains fp16 weights with fp32 masters.
void read_amp(const json& config, reference::Recipe& recipe) {
  const auto amp = enabled(config, "amp");
  const std::string level = amp.value("opt_level", "O1");
  if (amp.empty() || level == "O0") return;
  if (level == "O1") recipe.precision.autocast.emplace().dtype = at::kHalf;
  if (level == "O2") recipe.compute_dtype = at::kHalf;
  const auto scale = amp.value("loss_scale", json("dynamic"));
  recipe.precision.loss_scale = scale.is_number() ? fixed_scale(scale) : grad_scaler();
}

void read_averaging(const json& config, reference::PrecisionSpec& precision) {
  const double factor = config.value("gradient_predivide_factor", 1.0);
  if (config.value("gradient_allreduce_op", "mean") == "sum") {
    precision.averaging = reference::Averaging::Never;
  } else if (config.value("prescale_gradients", false)) {
    precision.averaging = reference::Averaging::BeforeSum;
  } else if (factor != 1.0) {
    precision.averaging = reference::Averaging::Around;
    precision.predivide_factor = factor;
  }
}

ScheduleSpec::PerGroup by_group(const json& params, const char* key, ScheduleSpec::PerGroup usual) {
  if (!params.contains(key)) return usual;
  if (params[key].is_number()) return {params[key].get<double>()};
  return params[key];
}

template <class Value>
void take(const json& params, const char* key, Value& value) {
  if (params.contains(key)) value = params[key].get<Value>();
}
template <class Value>
void take(const json& params, const char* key, std::optional<Value>& value) {
  if (params.contains(key)) value = params[key].get<Value>();
}

void read_cycle(const json& params, ScheduleSpec& spec) {
  spec.cycle_min_lr = by_group(params, "cycle_min_lr", spec.cycle_min_lr);
  spec.cycle_max_lr = by_group(params, "cycle_max_lr", spec.cycle_max_lr);
  take(params, "decay_lr_rate", spec.decay_lr_rate);
  take(params, "cycle_first_step_size", spec.cycle_first_step_size);
  take(params, "cycle_second_step_size", spec.cycle_second_step_size);
  take(params, "cycle_first_stair_count", spec.cycle_first_stair_count);
  take(params, "cycle_second_stair_count", spec.cycle_second_stair_count);
  take(params, "decay_step_size", spec.decay_step_size);
  take(params, "cycle_momentum", spec.cycle_momentum);
  spec.cycle_min_mom = by_group(params, "cycle_min_mom", spec.cycle_min_mom);
  spec.cycle_max_mom = by_group(params, "cycle_max_mom", spec.cycle_max_mom);
  take(params, "decay_mom_rate", spec.decay_mom_rate);
}

reference::ScheduleKind kind_named(const std::string& name) {
  using Kind = reference::ScheduleKind;
  if (name == "WarmupDecayLR") return Kind::WarmupDecayLr;
  if (name == "WarmupCosineLR") return Kind::WarmupCosineLr;
  if (name == "OneCycle") return Kind::OneCycle;
  return name == "LRRangeTest" ? Kind::LrRangeTest : Kind::WarmupLr;
}

}  // namespace

reference::Recipe read_again(const json& config) {
  reference::Recipe recipe;
  recipe.optimizer = optimizer_of(config);
  recipe.gradient_clipping = config.value("gradient_clipping", 0.0);
  read_fp16(config, recipe);
  read_bf16(config, recipe);
  read_amp(config, recipe);
  read_autocast(config, recipe);
  auto& precision = recipe.precision;
  read_averaging(config, precision);
  precision.infinity_norm = config.value("gradient_norm_type", json(2)) == "inf";
  if (config.contains("communication_data_type"))
    precision.communication_dtype = type_named(config["communication_data_type"]);
  const bool is_exact = config.value("reduction", "pinned") == "exact";
  if (is_exact) recipe.order = reference::SumOrder::ExactGrid;
  recipe.accumulate_dtype = is_exact ? at::kFloat : recipe.compute_dtype;
  const auto types = section(config, "data_types");
  if (types.contains("grad_accum_dtype"))
    recipe.accumulate_dtype = type_named(types["grad_accum_dtype"]);
  recipe.absolute_sums = false;
  return recipe;
}

std::optional<ScheduleSpec> schedule_of(const json& config) {
  if (!config.contains("scheduler")) return std::nullopt;
  const auto& written = config["scheduler"];
  const auto params = section(written, "params");
  ScheduleSpec spec;
  spec.kind = kind_named(written.at("type"));
  spec.warmup_min_lr = by_group(params, "warmup_min_lr", spec.warmup_min_lr);
  spec.warmup_max_lr = by_group(params, "warmup_max_lr", spec.warmup_max_lr);
  take(params, "warmup_num_steps", spec.warmup_num_steps);
  if (params.value("warmup_type", "log") == "linear")
    spec.warmup_type = reference::WarmupType::Linear;
  take(params, "total_num_steps", spec.total_num_steps);
  take(params, "warmup_min_ratio", spec.warmup_min_ratio);
  take(params, "cos_min_ratio", spec.cos_min_ratio);
  read_cycle(params, spec);
  // Only Adam has a first beta to cycle.
  if (section(config, "optimizer").at("type") == "SGD") spec.cycle_momentum = false;
  spec.lr_range_test_min_lr = by_group(params, "lr_range_test_min_lr", spec.lr_range_test_min_lr);
  take(params, "lr_range_test_step_size", spec.lr_range_test_step_size);
  take(params, "lr_range_test_step_rate", spec.lr_range_test_step_rate);
  take(params, "lr_range_test_staircase", spec.lr_range_test_staircase);
  take(params, "last_batch_iteration", spec.last_batch_iteration);
  return spec;
}

}  // namespace equigrad::conformance
