#include "conformance/cases/recipe.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace equigrad::conformance {
namespace {

bool small_buckets(const CaseSpec& spec) {
  return (static_cast<std::size_t>(spec.world + spec.accumulation) + spec.model.size()) % 2 == 0;
}

// A size that some parameter has exactly.
int64_t small_bucket_size(const reference::Model& model) {
  for (const auto& [name, parameter] : reference::unique_parameters(model))
    if (parameter.requires_grad() && parameter.numel() >= 90 && parameter.numel() <= 600)
      return parameter.numel();
  return 300;
}

bool low_masters(const CaseSpec& spec) {
  return spec.precision == Precision::Bf16MastersStates ||
         spec.precision == Precision::Bf16Masters || spec.precision == Precision::Fp16Masters ||
         spec.precision == Precision::AutocastBf16MastersStates;
}

// Biases have fewer elements, weights more.
constexpr int64_t kSmallNumel = 50;

// Tiny models do not overflow with it, and it may double.
constexpr int kScalePower = 8;
int hysteresis_of(const CaseSpec& spec) { return spec.accumulation == 4 ? 2 : 1; }

// amp's own scale begins at 2^16, where four micro-batches and more overflow step after step.
bool has_static_amp(const CaseSpec& spec) {
  return spec.precision == Precision::AmpO1 ||
         (spec.precision == Precision::AmpO2 && spec.accumulation >= 4);
}

reference::LossScaleSpec loss_scale_of(const CaseSpec& spec) {
  using Policy = reference::LossScaleSpec::Policy;
  if (has_static_amp(spec)) return {.policy = Policy::Static, .initial = 1024};
  switch (spec.precision) {
    case Precision::Fp16:
    case Precision::Fp16Masters:
      return {.policy = Policy::DeepSpeed,
              .initial = std::exp2(kScalePower),
              .window = 1,
              .hysteresis = hysteresis_of(spec)};
    case Precision::Fp16Static:
    case Precision::Fp16Prescale:
      return {.policy = Policy::Static, .initial = 128};
    case Precision::AutocastFp16:
    case Precision::AmpO2:
      return {.policy = Policy::GradScaler, .initial = 65536, .window = 2000};
    default:
      return {};
  }
}

reference::PrecisionSpec precision_of(const CaseSpec& spec) {
  reference::PrecisionSpec precision;
  if (low_masters(spec)) precision.master_dtype = dtype_of(spec);
  if (spec.precision == Precision::Bf16MastersStates ||
      spec.precision == Precision::AutocastBf16MastersStates)
    precision.state_dtype = at::kBFloat16;
  if (spec.precision == Precision::Fp32CommBf16) precision.communication_dtype = at::kBFloat16;
  if (spec.precision == Precision::Bf16CommFp32) precision.communication_dtype = at::kFloat;
  if (const auto dtype = autocast_dtype_of(spec)) precision.autocast.emplace().dtype = *dtype;
  precision.loss_scale = loss_scale_of(spec);
  if (spec.precision == Precision::Fp32Prescale || spec.precision == Precision::Fp16Prescale)
    precision.averaging = reference::Averaging::BeforeSum;
  if (spec.precision == Precision::Fp32Predivide) {
    precision.averaging = reference::Averaging::Around;
    precision.predivide_factor = 3;
  }
  if (spec.precision == Precision::Fp32Sum) precision.averaging = reference::Averaging::Never;
  precision.infinity_norm = spec.clip == Clip::AboveInf;
  return precision;
}

// The sections of the 16-bit types, as DeepSpeed spells them.
void add_narrow_section(nlohmann::json& config, const CaseSpec& spec) {
  const auto dynamic = [&spec] {
    return nlohmann::json{{"enabled", true},
                          {"initial_scale_power", kScalePower},
                          {"loss_scale_window", 1},
                          {"hysteresis", hysteresis_of(spec)}};
  };
  auto& zero = config["zero_optimization"];
  switch (spec.precision) {
    case Precision::Bf16:
    case Precision::Bf16CommFp32:
    case Precision::Bf16Exact:
      config["bf16"] = {{"enabled", true}};
      break;
    case Precision::Bf16MastersStates:
    case Precision::AutocastBf16MastersStates:
      config["bf16"] = {{"enabled", true},
                        {"bf16_master_weights_and_grads", true},
                        {"bf16_optimizer_states", true}};
      break;
    case Precision::Bf16Masters:
      config["bf16"] = {{"enabled", true}, {"bf16_master_weights_and_grads", true}};
      zero["offload_optimizer"] = {{"device", "cpu"}};
      break;
    case Precision::Fp16:
      config["fp16"] = dynamic();
      break;
    case Precision::Fp16Masters:
      config["fp16"] = dynamic();
      config["fp16"]["fp16_master_weights_and_grads"] = true;
      break;
    case Precision::Fp16Static:
    case Precision::Fp16Prescale:
      config["fp16"] = {{"enabled", true}, {"loss_scale", 128}};
      break;
    case Precision::AmpO1:
      config["amp"] = {{"enabled", true}, {"opt_level", "O1"}, {"loss_scale", 1024}};
      break;
    case Precision::AmpO2:
      config["amp"] = {{"enabled", true}, {"opt_level", "O2"}};
      if (has_static_amp(spec)) config["amp"]["loss_scale"] = 1024;
      break;
    default:
      break;
  }
  const bool is_narrow = dtype_of(spec) != at::kFloat;
  if (is_narrow && !low_masters(spec) && spec.accumulation == 3)
    config["data_types"]["grad_accum_dtype"] = "fp32";
}

// Everything else that makes a precision.
void add_precision(nlohmann::json& config, const CaseSpec& spec) {
  add_narrow_section(config, spec);
  switch (spec.precision) {
    case Precision::AutocastBf16:
    case Precision::AutocastBf16MastersStates:
      config["torch_autocast"] = {{"enabled", true}, {"dtype", "bfloat16"}};
      break;
    case Precision::AutocastFp16:
      config["torch_autocast"] = {{"enabled", true}, {"dtype", "float16"}};
      break;
    case Precision::Offload:
      config["zero_optimization"]["offload_optimizer"]["device"] = "cpu";
      break;
    case Precision::Fp32CommBf16:
      config["communication_data_type"] = "bf16";
      break;
    case Precision::Bf16CommFp32:
      config["communication_data_type"] = "fp32";
      break;
    case Precision::Fp32Prescale:
    case Precision::Fp16Prescale:
      config["prescale_gradients"] = true;
      break;
    case Precision::Fp32Predivide:
      config["gradient_predivide_factor"] = 3.0;
      break;
    case Precision::Fp32Sum:
      config["gradient_allreduce_op"] = "sum";
      break;
    case Precision::Fp32Exact:
    case Precision::Bf16Exact:
      config["reduction"] = "exact";
      break;
    default:
      break;
  }
  if (spec.clip == Clip::AboveInf) config["gradient_norm_type"] = "inf";
}

}  // namespace

reference::OptimizerSpec optimizer_of(const CaseSpec& spec) {
  reference::OptimizerSpec optimizer;
  if (spec.optimizer == Rule::AdamW) {
    optimizer.rule = reference::Rule::AdamW;
    optimizer.lr = 1e-2;
    optimizer.weight_decay = 0.01;
    return optimizer;
  }
  optimizer.rule = reference::Rule::Sgd;
  optimizer.lr = 0.1;
  // Without momentum there is no state at all, which is a case of its own.
  if ((spec.world + spec.accumulation) % 2 == 1) {
    optimizer.momentum = 0.9;
    optimizer.weight_decay = 0.02;
  }
  return optimizer;
}

at::ScalarType dtype_of(const CaseSpec& spec) {
  switch (spec.precision) {
    case Precision::Bf16:
    case Precision::Bf16MastersStates:
    case Precision::Bf16Masters:
    case Precision::AutocastBf16MastersStates:
    case Precision::Bf16CommFp32:
    case Precision::Bf16Exact:
      return at::kBFloat16;
    case Precision::Fp16:
    case Precision::Fp16Static:
    case Precision::Fp16Masters:
    case Precision::AmpO2:
    case Precision::Fp16Prescale:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

// 16 bits accumulate in 16 bits unless they are told otherwise; both are worth a look. With masters
// in 16 bits there is no choice.
at::ScalarType accumulate_dtype_of(const CaseSpec& spec) {
  if (low_masters(spec)) return dtype_of(spec);
  if (sums_exactly(spec.precision)) return at::kFloat;
  return spec.accumulation == 3 ? at::kFloat : dtype_of(spec);
}

std::optional<at::ScalarType> autocast_dtype_of(const CaseSpec& spec) {
  if (!is_autocast(spec.precision)) return std::nullopt;
  const bool is_half =
      spec.precision == Precision::AutocastFp16 || spec.precision == Precision::AmpO1;
  return is_half ? at::kHalf : at::kBFloat16;
}

std::optional<OverflowingBatch> overflowing_batch(const CaseSpec& spec) {
  if (scaling_of(spec.precision) != Scaling::Dynamic) return std::nullopt;
  if (has_static_amp(spec)) return std::nullopt;
  const int kind = (spec.world + 2 * spec.accumulation + (spec.clip == Clip::Off ? 1 : 0)) % 3;
  if (kind == 0) return std::nullopt;
  return OverflowingBatch{kind, spec.world - 1, spec.accumulation / 2};
}

reference::SumOrder order_of(int stage) {
  return stage <= 1 ? reference::SumOrder::AddThenReduce : reference::SumOrder::ReduceThenAdd;
}

reference::SumOrder order_of(const CaseSpec& spec) {
  return sums_exactly(spec.precision) ? reference::SumOrder::ExactGrid : order_of(spec.stage);
}

reference::Recipe recipe_of(const CaseSpec& spec, uint64_t seed, double threshold,
                            reference::SumOrder order) {
  reference::Recipe recipe;
  recipe.model = spec.model;
  recipe.seed = seed;
  recipe.world = spec.world;
  recipe.accumulation_steps = spec.accumulation;
  recipe.steps = kSteps;
  recipe.optimizer = optimizer_of(spec);
  recipe.gradient_clipping = threshold;
  recipe.compute_dtype = dtype_of(spec);
  recipe.accumulate_dtype = accumulate_dtype_of(spec);
  recipe.order = order;
  recipe.precision = precision_of(spec);
  recipe.absolute_sums = false;
  return recipe;
}

std::string config_text(const CaseSpec& spec, double threshold, const reference::Model& model) {
  nlohmann::json config;
  config["train_micro_batch_size_per_gpu"] = 1;
  config["gradient_accumulation_steps"] = spec.accumulation;
  if (spec.clip != Clip::Off) config["gradient_clipping"] = threshold;
  const auto optimizer = optimizer_of(spec);
  auto& params = config["optimizer"]["params"];
  params["lr"] = optimizer.lr;
  params["weight_decay"] = optimizer.weight_decay;
  if (spec.optimizer == Rule::AdamW) {
    config["optimizer"]["type"] = "AdamW";
    params["betas"] = {optimizer.beta1, optimizer.beta2};
    params["eps"] = optimizer.eps;
  } else {
    config["optimizer"]["type"] = "SGD";
    params["momentum"] = optimizer.momentum;
  }
  add_precision(config, spec);
  const int64_t bucket = small_buckets(spec) ? small_bucket_size(model) : 5000;
  auto& zero = config["zero_optimization"];
  zero["stage"] = spec.stage;
  zero["reduce_bucket_size"] = bucket;
  zero["allgather_bucket_size"] = bucket;
  if (spec.stage == 3) {  // page everything, all the time, but for what may stay whole
    zero["stage3_param_persistence_threshold"] = spec.accumulation == 3 ? kSmallNumel : 0;
    zero["stage3_max_reuse_distance"] = 0;
    zero["stage3_prefetch_bucket_size"] = bucket;
  }
  return config.dump(1);
}

std::string with_knobs(const std::string& config_text, const nlohmann::json& knobs) {
  auto config = nlohmann::json::parse(config_text);
  config.merge_patch(knobs);
  return config.dump(1);
}

}  // namespace equigrad::conformance
