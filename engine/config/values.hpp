// Values: a configuration as text, a line for each key: to compare what two ranks were given.
//
// Invariants: keys in the table's order, those that this configuration has; "key value", as JSON.
// What is a rank's own is left out: where it writes, how long it waits.
// Units: as in config.hpp.   Errors: none.   Depends on: engine/config/config.hpp.
#pragma once

#include <string>
#include <vector>

#include "engine/config/config.hpp"

namespace equigrad {

std::vector<std::string> values_of(const EngineConfig& config);

}  // namespace equigrad
