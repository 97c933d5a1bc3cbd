// IdleKeys: keys of the configuration's table that may stand in any file without an effect: those
// that are accepted with anything, and those that are not supported, with what holds here anyway.
//
// Invariants: they come from the table itself, so a new row is drawn from the day it is there. A
// key of a section is drawn only where adding the section would not switch it on, or where it is
// there.
// Units: none.   Errors: none.
// Depends on: dice.hpp, engine/config/schema.hpp (source only). No torch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/generator/dice.hpp"

namespace equigrad::conformance {

struct IdleKey {
  std::string path;                    // "zero_optimization.reduce_scatter"
  std::vector<nlohmann::json> values;  // that are accepted
};
const std::vector<IdleKey>& idle_keys();

// None, one or a few of them, where `config` and `knobs` do not have them yet.
void add_idle_keys(Dice& dice, const nlohmann::json& config, nlohmann::json& knobs);

// The value at a dotted path; null: none is there.
const nlohmann::json* at_path(const nlohmann::json& config, const std::string& path);

}  // namespace equigrad::conformance
