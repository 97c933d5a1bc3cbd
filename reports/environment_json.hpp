// EnvironmentJson: the environment as every record has it.
//
// Invariants: the order of the keys is that of the schema.
// Units: none.   Errors: none.
// Depends on: record.hpp, nlohmann-json.
#pragma once

#include <nlohmann/json.hpp>

#include "reports/record.hpp"

namespace equigrad::reports {

inline nlohmann::ordered_json write(const Environment& env) {
  return {{"version", env.version}, {"commit", env.commit},
          {"torch", env.torch},     {"compiler", env.compiler},
          {"device", env.device},   {"cpu", env.cpu},
          {"cores", env.cores},     {"threads_per_rank", env.threads_per_rank},
          {"os", env.os},           {"time", env.time}};
}

}  // namespace equigrad::reports
