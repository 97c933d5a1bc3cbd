// The twin of a configuration as the engine's parser read it.
#include <algorithm>
#include <cmath>

#include "conformance/cases/recipe.hpp"

namespace equigrad::conformance {
namespace {

at::ScalarType scalar_type(DataType dtype) {
  return dtype == DataType::Bf16 ? at::kBFloat16 : dtype == DataType::Fp16 ? at::kHalf : at::kFloat;
}

reference::LossScaleSpec loss_scale_of(const LossScaleConfig& from) {
  using From = LossScaleConfig::Policy;
  using To = reference::LossScaleSpec::Policy;
  reference::LossScaleSpec to;
  to.policy = from.policy == From::Static       ? To::Static
              : from.policy == From::DeepSpeed  ? To::DeepSpeed
              : from.policy == From::GradScaler ? To::GradScaler
                                                : To::None;
  to.initial = from.policy == From::Static
                   ? from.static_scale
                   : std::exp2(static_cast<double>(from.initial_scale_power));
  to.window = from.loss_scale_window;
  to.hysteresis = from.hysteresis;
  to.consecutive_hysteresis = from.consecutive_hysteresis;
  to.minimum = from.min_loss_scale;
  return to;
}

reference::AutocastSpec autocast_of(const AutocastConfig& from) {
  reference::AutocastSpec to;
  to.dtype = scalar_type(from.dtype);
  to.safe_modules.clear();
  const std::string prefix = "torch.nn.";
  for (const auto& name : from.lower_precision_safe_modules)
    to.safe_modules.push_back(name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name);
  return to;
}

reference::PrecisionSpec precision_of(const EngineConfig& config) {
  using Kind = AveragingConfig::Kind;
  const auto& from = config.precision;
  reference::PrecisionSpec to;
  to.master_dtype = scalar_type(from.master);
  to.state_dtype = scalar_type(from.optimizer_state);
  if (from.communication) to.communication_dtype = scalar_type(*from.communication);
  if (from.autocast.enabled) to.autocast = autocast_of(from.autocast);
  to.loss_scale = loss_scale_of(from.loss_scale);
  const auto kind = config.averaging.kind;
  to.averaging = kind == Kind::BeforeSum ? reference::Averaging::BeforeSum
                 : kind == Kind::Around  ? reference::Averaging::Around
                 : kind == Kind::Never   ? reference::Averaging::Never
                                         : reference::Averaging::AfterSum;
  to.predivide_factor = config.averaging.predivide_factor;
  to.infinity_norm = config.gradient_norm == NormType::Infinity;
  return to;
}

reference::OptimizerSpec optimizer_of(const OptimizerConfig& from) {
  using Kind = OptimizerConfig::Kind;
  reference::OptimizerSpec to;
  to.rule = from.kind == Kind::Sgd    ? reference::Rule::Sgd
            : from.kind == Kind::Adam ? reference::Rule::Adam
                                      : reference::Rule::AdamW;
  to.lr = from.lr;
  to.weight_decay = from.weight_decay;
  to.beta1 = from.beta1;
  to.beta2 = from.beta2;
  to.eps = from.eps;
  to.momentum = from.momentum;
  to.dampening = from.dampening;
  to.nesterov = from.nesterov;
  return to;
}

}  // namespace

reference::Recipe recipe_of(const EngineConfig& config, int world, uint64_t seed) {
  reference::Recipe recipe;
  recipe.seed = seed;
  recipe.world = world;
  recipe.accumulation_steps = config.gradient_accumulation_steps;
  recipe.optimizer = optimizer_of(config.optimizer);
  recipe.gradient_clipping = config.gradient_clipping;
  recipe.compute_dtype = scalar_type(config.precision.param);
  recipe.accumulate_dtype = scalar_type(config.precision.accumulate);
  const bool is_exact = config.reduction == ReductionOrder::Exact;
  recipe.order = is_exact ? reference::SumOrder::ExactGrid : order_of(config.zero.stage);
  recipe.precision = precision_of(config);
  recipe.absolute_sums = false;
  return recipe;
}

}  // namespace equigrad::conformance
