#include "conformance/on_rank/case_facts.hpp"

#include <algorithm>

#include "conformance/cases/model_groups.hpp"
#include "conformance/cases/recipe.hpp"

namespace equigrad::conformance {
namespace {

// The default of torch_autocast.lower_precision_safe_modules.
bool is_safe(const std::string& module_type) {
  return module_type == "torch.nn.Linear" || module_type == "torch.nn.Conv1d" ||
         module_type == "torch.nn.Conv2d" || module_type == "torch.nn.Conv3d";
}

}  // namespace

CaseFacts facts_of(const nlohmann::json& request, ranks::RankContext& context,
                   const reference::Data& data, OverflowingModel& model) {
  const auto spec = parse_id(request.at("id"));
  CaseFacts facts{.spec = spec,
                  .seed = request.at("seed"),
                  .keep = request.value("keep", ""),
                  .context = context,
                  .data = data,
                  .twin = Twin(request.at("twin"), order_of(spec)),
                  .shapes = {},
                  .rules = {},
                  .communication_dtypes = {}};
  for (const auto& [name, tensor] : reference::unique_parameters(model))
    facts.shapes[name] = tensor.sizes().vec();
  for (const auto& group : model.groups())
    for (const auto& name : group.names) {
      auto& rule = facts.rules[name] = optimizer_of(spec);
      rule.lr = group.lr.value_or(rule.lr);
      rule.weight_decay = group.weight_decay.value_or(rule.weight_decay);
    }
  if (const auto dtype = autocast_dtype_of(spec))
    for (const auto& [name, types] : module_types(model))
      if (std::all_of(types.begin(), types.end(), is_safe))
        facts.communication_dtypes[name] = *dtype;
  return facts;
}

oracle::UpdateSpec update_spec(const CaseFacts& facts, const std::string& name, int64_t updates) {
  const auto& rule = facts.rules.at(name);
  oracle::UpdateSpec update;
  update.rule =
      facts.spec.optimizer == Rule::Sgd ? oracle::UpdateRule::Sgd : oracle::UpdateRule::AdamW;
  update.lr = rule.lr;
  update.weight_decay = rule.weight_decay;
  update.beta1 = rule.beta1;
  update.beta2 = rule.beta2;
  update.eps = rule.eps;
  update.momentum = rule.momentum;
  update.step = updates;
  return update;
}

}  // namespace equigrad::conformance
