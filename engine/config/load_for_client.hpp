// Load for a client: a configuration beside an optimizer that the caller brings.
//
// Invariants: as load_config, but that "optimizer" must be absent. What goes by its type
// (OneCycle's cycle_momentum) is accepted.
// Units, errors: those of config.hpp.
// Depends on: engine/config/config.hpp.
#pragma once

#include <string>

#include "engine/config/config.hpp"

namespace equigrad {

EngineConfig load_config_for_client(const std::string& text_or_path, int world_size);
EffectiveConfig explain_config_for_client(const std::string& text_or_path, int world_size);

}  // namespace equigrad
