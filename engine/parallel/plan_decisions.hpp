// Plan decisions: which rule names which module, and what it says of it: the caller's specs, then
// a preset's rules, then, without either, the heuristics, then the model's own plan
// (tensor_plan.hpp).
//
// Invariants: one decision for each candidate, in their order; without a reason no rule names it.
// Errors: equigrad::Error for a pattern that names nothing, two specs of the caller that disagree,
// a preset that is unknown or names nothing, a model type that the heuristics are not for, a style
// of the model's plan that is unknown or that its module cannot have, two of one module, a linear
// without a rule in strict mode.
// Depends on: engine/parallel/tensor_plan.hpp, engine/parallel/plan_rules.hpp.
#pragma once

#include <string>
#include <vector>

#include "engine/parallel/plan_rules.hpp"
#include "engine/parallel/tensor_plan.hpp"

namespace equigrad::parallel {

inline constexpr const char* kTensorPlan = "tensor_parallel";  // where errors come from

struct Decision {
  Placement placement = Placement::Replicated;
  Packing packing = Packing::Plain;
  const LayerSpec* spec = nullptr;  // of the caller
  bool gathers_output = false;
  bool takes_whole_input = false;
  bool sums_gradient = false;
  std::string reason;  // empty: no rule names it
};

struct PlanInput {
  const TensorParallelConfig& config;
  const ModelFacts& model;  // its type in lower case
  const std::vector<Candidate>& candidates;
};

std::vector<Decision> decide(const PlanInput& input);

// "model.layers.3" of "model.layers.3.mlp.up_proj"; empty: in no repeated block.
std::string block_of(const std::string& name);

bool is_linear(const Candidate& candidate);

// Whether the last part of its name is one of partition_config.lm_head_patterns.
bool is_head(const Candidate& candidate, const TensorParallelConfig& config);

// The names, up to three of them.
std::string listed(const std::vector<std::string>& names);

}  // namespace equigrad::parallel
