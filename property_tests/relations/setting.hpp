// Setting: the configuration in which relations are tried, as JSON: drawn once, read by all ranks.
//
//   world stage accumulation  dtype (0 fp32, 1 bf16, 2 fp16)  wide_sums  model (probe_network.hpp)
//   rows rule (0 SGD, 1 Adam, 2 AdamW)  clip  decay  momentum  schedule [6]  seed  fault (optional)
//
// Invariants: equal settings give equal configurations. fp16 starts at a scale of 2^8, which
// every overflow halves.
// Units: schedule counts elements.   Errors: none.
// Depends on: engine/config/config.hpp, engine/kernels/data_types.hpp, nlohmann-json.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/config/config.hpp"
#include "engine/kernels/data_types.hpp"
#include "property_tests/zero_settings.hpp"

namespace equigrad::property_tests::relations {

using nlohmann::json;

constexpr int kFp32 = 0, kBf16 = 1, kFp16 = 2;

inline bool is_fp16(const json& one) { return one.at("dtype") == kFp16; }
inline bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }
inline int world_of(const json& one) { return one.at("world"); }
inline int accumulation_of(const json& one) { return one.at("accumulation"); }
inline int stage_of(const json& one) { return one.at("stage"); }

// Stages 2 and 3 add sums over ranks in fp32 to what they keep in 16 bits, so the first is rounded
// before the second is added to it, which is not: they may not change places.
inline bool adds_what_it_keeps(const json& one) {
  return stage_of(one) < 2 || one.at("wide_sums").get<bool>();
}

inline PrecisionConfig precision_of(const json& one) {
  PrecisionConfig precision;
  precision.param = one.at("dtype") == kFp32   ? DataType::Fp32
                    : one.at("dtype") == kBf16 ? DataType::Bf16
                                               : DataType::Fp16;
  if (!one.at("wide_sums").get<bool>()) precision.accumulate = precision.param;
  if (!is_fp16(one)) return precision;
  precision.loss_scale.policy = LossScaleConfig::Policy::DeepSpeed;
  precision.loss_scale.initial_scale_power = one.value("scale_power", 8);
  precision.loss_scale.loss_scale_window = 1;
  precision.loss_scale.hysteresis = 1;
  return precision;
}

inline EngineConfig config_of(const json& one, int world) {
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
  config.communication_timeout_s = 30;
  return config;
}

inline json changed(json one, const std::string& key, const json& value) {
  one[key] = value;
  return one;
}

}  // namespace equigrad::property_tests::relations
