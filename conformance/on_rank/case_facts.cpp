#include "conformance/on_rank/case_facts.hpp"

#include <algorithm>

#include "conformance/cases/model_groups.hpp"

namespace equigrad::conformance {

TensorPlace tensor_place(int rank, const CaseSpec& spec) {
  return {.cuts = cuts_of(spec.model), .part = rank % spec.tensor(), .parts = spec.tensor()};
}

void add_model(CaseFacts& facts, reference::Model& model) {
  const auto& [cuts, part, parts] = facts.tensor_rank;
  facts.sizes =
      comm::mesh_sizes(facts.context.world_size(), static_cast<int>(facts.recipe.sequence), parts);
  facts.place = comm::place_of(facts.context.rank(), facts.sizes);
  for (const auto& [name, tensor] : reference::unique_parameters(model)) {
    auto& shape = facts.shapes[name] = facts.whole_shapes[name] = tensor.sizes().vec();
    const auto cut = cuts.find(name);
    if (cut != cuts.end()) shape[static_cast<std::size_t>(cut->second.dimension)] /= parts;
  }
  std::size_t number = 0;
  for (const auto& group : model.groups()) {
    for (const auto& name : group.names) {
      facts.groups[name] = number;
      auto& rule = facts.rules[name] = facts.recipe.optimizer;
      rule.lr = group.lr.value_or(rule.lr);
      rule.weight_decay = group.weight_decay.value_or(rule.weight_decay);
    }
    ++number;
  }
  const auto& autocast = facts.recipe.precision.autocast;
  if (!autocast) return;
  const auto is_safe = [&](const std::string& type) {
    const auto& safe = autocast->safe_modules;
    return std::any_of(safe.begin(), safe.end(),
                       [&](const std::string& name) { return type == "torch.nn." + name; });
  };
  for (const auto& [name, types] : module_types(model))
    if (std::all_of(types.begin(), types.end(), is_safe))
      facts.communication_dtypes[name] = autocast->dtype;
}

oracle::UpdateSpec update_spec(const CaseFacts& facts, const std::string& name, int64_t updates) {
  const auto& rule = facts.rules.at(name);
  oracle::UpdateSpec update;
  update.rule = rule.rule == reference::Rule::Sgd    ? oracle::UpdateRule::Sgd
                : rule.rule == reference::Rule::Adam ? oracle::UpdateRule::Adam
                                                     : oracle::UpdateRule::AdamW;
  update.lr = rule.lr;
  update.weight_decay = rule.weight_decay;
  update.beta1 = rule.beta1;
  update.beta2 = rule.beta2;
  update.eps = rule.eps;
  update.momentum = rule.momentum;
  update.dampening = rule.dampening;
  update.nesterov = rule.nesterov;
  update.step = updates;
  return update;
}

}  // namespace equigrad::conformance
