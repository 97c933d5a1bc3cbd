#include "conformance/cases/model_groups.hpp"

#include <torch/nn/module.h>

namespace equigrad::conformance {
namespace {

// torch::nn::LinearImpl -> torch.nn.Linear.
std::string python_name(std::string type) {
  for (auto at = type.find("::"); at != std::string::npos; at = type.find("::", at))
    type.replace(at, 2, ".");
  const std::string end = "Impl";
  if (type.size() > end.size() && type.compare(type.size() - end.size(), end.size(), end) == 0)
    type.resize(type.size() - end.size());
  return type;
}

}  // namespace

ModuleTypes module_types(const torch::nn::Module& model) {
  std::map<const void*, std::set<std::string>> types;
  for (const auto& module : model.modules())
    for (const auto& parameter : module->parameters(/*recurse=*/false))
      types[parameter.unsafeGetTensorImpl()].insert(python_name(module->name()));
  ModuleTypes by_name;
  for (const auto& [name, tensor] : reference::unique_parameters(model))
    by_name[name] = types.at(tensor.unsafeGetTensorImpl());
  return by_name;
}

std::vector<ParameterGroup> groups_of(reference::Model& model) {
  const auto types = module_types(model);
  std::map<std::string, NamedParameter> parameters;
  std::vector<ParameterGroup> groups(1);
  for (const auto& [name, tensor] : reference::unique_parameters(model)) {
    parameters[name] = {name, tensor, *types.at(name).begin()};
    if (!tensor.requires_grad()) groups[0].parameters.push_back(parameters[name]);
  }
  for (const auto& from : model.groups()) {
    groups.push_back({{}, from.lr, from.weight_decay});
    for (const auto& name : from.names) groups.back().parameters.push_back(parameters.at(name));
  }
  if (groups[0].parameters.empty()) groups.erase(groups.begin());
  return groups;
}

}  // namespace equigrad::conformance
