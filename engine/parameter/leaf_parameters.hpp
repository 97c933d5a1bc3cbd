// Leaf parameters: from the configuration's leaf_module section, or a mark's, to the modules that
// it means, and to their parameters.
//
// Invariants: of nested leaves the outermost counts; groups are disjoint, in the order of the
// model's modules; every entry but the classes by default matches a module.
// Shapes: none.
// Errors: equigrad::Error for an entry that matches none, with the nearest that does.
// Depends on: ATen tensors, config.hpp, layout/module_tree.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/layout/module_tree.hpp"

namespace equigrad {

struct LeafCandidate {
  std::string name;  // "layers.0.experts"
  std::string type;  // as torch::nn::Module::name() has it, "models::MoEImpl"
};

// Positions in `candidates`, ascending. `where` is the beginning of an error.
std::vector<std::size_t> find_leaf_modules(const std::vector<LeafCandidate>& candidates,
                                           const LeafModuleConfig& config,
                                           const std::string& where);

// The parameters of each leaf, by their positions in `tensors`.
std::vector<std::vector<std::size_t>> leaf_parameters(
    const std::vector<layout::ModuleEntry>& modules, const std::vector<at::Tensor>& tensors,
    const LeafModuleConfig& config);

}  // namespace equigrad
