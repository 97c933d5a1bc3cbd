// Assemble: from named parameters, or a module, to the parameter table that the engine works with.
//
// Invariants: every tensor is a leaf and appears once, tied names resolved; a parameter that
// requires no gradient is frozen; all ranks start from rank 0's values, of a split parameter those
// that train one part of it from the first of them.
// Errors: equigrad::Error for no parameters, a tensor that is not a leaf, a trainable one of the
// wrong dtype, and what layout/parameter_table.hpp refuses.
// Depends on: engine.hpp's parameter groups, layout, comm, optimizer's group overrides.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/comm/mesh.hpp"
#include "engine/engine.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/optimizer/sharded_state.hpp"

namespace equigrad {

struct Assembly {
  layout::ParameterTable table;
  std::vector<at::Tensor> tensors;  // by index of the table
  std::vector<optimizer::GroupOverride> groups;
  std::vector<std::vector<std::size_t>> leaves = {};  // parameters of leaf modules
  std::shared_ptr<SliceOptimizer> client = {};        // instead of the configured optimizer
};

Assembly assemble(const std::vector<ParameterGroup>& groups, const EngineConfig& config,
                  const comm::Mesh& mesh);

}  // namespace equigrad
