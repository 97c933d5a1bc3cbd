// Setting: the configuration in which relations are tried, as JSON: drawn once, read by all ranks.
//
//   world stage accumulation  dtype (0 fp32, 1 bf16, 2 fp16)  wide_sums  model (probe_network.hpp)
//   rows rule (0 SGD, 1 Adam, 2 AdamW)  clip  decay  momentum  schedule [6]  seed
//   optional: fault  groups (of parameters)  warmup (steps)  layer_drop  hysteresis ...
//
// Invariants: equal settings give equal configurations. fp16 starts at a scale of 2^8, which
// every overflow halves.
// Units: schedule counts elements.   Errors: none.
// Depends on: engine/config/config.hpp, engine/kernels/data_types.hpp, nlohmann-json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/config/config.hpp"
#include "engine/kernels/data_types.hpp"

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

PrecisionConfig precision_of(const json& one);
EngineConfig config_of(const json& one, int world);

inline json changed(json one, const std::string& key, const json& value) {
  one[key] = value;
  return one;
}

}  // namespace equigrad::property_tests::relations
