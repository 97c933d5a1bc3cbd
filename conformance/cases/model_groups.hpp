// ModelGroups: a model of the zoo as the groups of parameters that the engine's core takes.
//
// Invariants: every parameter is in one group, under the first name it has; the frozen ones, which
// are in no group of the model, come first; module_type is the first of its types by name.
// Shapes: the parameters keep theirs.   Errors: std::out_of_range for a group with another name.
// Depends on: reference/models/model.hpp, engine/api/engine_types.hpp.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/api/engine_types.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

// "torch.nn.Linear" for a torch::nn::Linear: those of all modules that have it, by parameter.
using ModuleTypes = std::map<std::string, std::set<std::string>>;
ModuleTypes module_types(const torch::nn::Module& model);

std::vector<ParameterGroup> groups_of(reference::Model& model);

}  // namespace equigrad::conformance
