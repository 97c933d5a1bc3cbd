// Module tree: the modules of a model by name, and which parameters are whose.
//
// Invariants: parents first, the model itself, "", at the front; a parameter is listed under its
// own module, not under those around it, and under every module that shares it.
// Units: none.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace equigrad::layout {

struct ModuleEntry {
  std::string name;  // "blocks.0.attention"; the model itself is ""
  std::string type;
  std::vector<const void*> parameters;  // identities, as in Registration
};

// The modules that names such as "block.0.weight" tell of.
std::vector<ModuleEntry> modules_of(
    const std::vector<std::pair<std::string, const void*>>& parameters);

}  // namespace equigrad::layout
