#include "property_tests/relations/setting.hpp"

#include "property_tests/zero_settings.hpp"

namespace equigrad::property_tests::relations {

PrecisionConfig precision_of(const json& one) {
  PrecisionConfig precision;
  precision.param = one.at("dtype") == kFp32   ? DataType::Fp32
                    : one.at("dtype") == kBf16 ? DataType::Bf16
                                               : DataType::Fp16;
  if (!one.at("wide_sums").get<bool>()) precision.accumulate = precision.param;
  if (!is_fp16(one)) return precision;
  precision.loss_scale.policy = LossScaleConfig::Policy::DeepSpeed;
  precision.loss_scale.initial_scale_power = one.value("scale_power", 8);
  precision.loss_scale.loss_scale_window = 1;
  precision.loss_scale.hysteresis = one.value("hysteresis", 1);
  return precision;
}

EngineConfig config_of(const json& one, int world) {
  EngineConfig config;
  config.gradient_accumulation_steps = one.at("accumulation");
  config.train_batch_size = config.gradient_accumulation_steps * world;
  config.precision = precision_of(one);
  config.gradient_clipping = one.at("clip");
  config.optimizer.kind = static_cast<OptimizerConfig::Kind>(one.at("rule").get<int>());
  config.optimizer.lr = one.value("lr", 0.02);
  config.optimizer.weight_decay = one.at("decay");
  if (one.at("rule") == 0) config.optimizer.momentum = one.at("momentum");
  config.zero = property_tests::zero_of(one);
  if (one.value("native", false)) config.reduction = ReductionOrder::Native;
  if (one.value("exact", false)) config.reduction = ReductionOrder::Exact;
  if (one.value("sum_only", false)) config.averaging.kind = AveragingConfig::Kind::Never;
  config.offload_optimizer.to_cpu = one.value("offload", false);
  config.offload_optimizer.pin_memory = false;
  config.flops_profiler.enabled = one.value("profiler", false);
  config.flops_profiler.output_file = "/dev/null";
  if (one.contains("warmup")) config.scheduler.emplace().warmup_num_steps = one.at("warmup");
  config.progressive_layer_drop.enabled = one.value("layer_drop", false);
  config.progressive_layer_drop.gamma = 0.1;
  config.communication_timeout_s = 30;
  return config;
}

}  // namespace equigrad::property_tests::relations
