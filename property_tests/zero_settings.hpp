// ZeroSettings: the stage of a drawn setting, and what only schedules: sizes and thresholds.
//
//   {"stage": 3, "schedule": [reduce bucket, gather bucket, prefetch, persistence, live, reuse]}
//
// Invariants: none.   Units: elements.   Errors: nlohmann::json::exception for another form.
// Depends on: engine/config/config.hpp, nlohmann-json.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/config/config.hpp"

namespace equigrad::property_tests {

inline ZeroConfig zero_of(const nlohmann::json& one) {
  const auto& schedule = one.at("schedule");
  ZeroConfig zero;
  zero.stage = one.at("stage");
  zero.reduce_bucket_size = schedule.at(0);
  zero.allgather_bucket_size = schedule.at(1);
  zero.stage3_prefetch_bucket_size = schedule.at(2);
  zero.stage3_param_persistence_threshold = schedule.at(3);
  zero.stage3_max_live_parameters = schedule.at(4);
  zero.stage3_max_reuse_distance = schedule.at(5);
  return zero;
}

}  // namespace equigrad::property_tests
