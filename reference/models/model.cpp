#include "reference/models/model.hpp"

#include <unordered_set>

namespace equigrad::reference {

at::Tensor widen(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

std::vector<GroupSpec> Model::groups() {
  GroupSpec all;
  for (const auto& [name, parameter] : unique_parameters(*this)) {
    if (parameter.requires_grad()) all.names.push_back(name);
  }
  return {all};
}

at::Tensor Model::loss(const Batch& batch) {
  const at::Tensor from_output = criterion(output(batch), batch);
  const at::Tensor from_parameters = penalty();
  return from_parameters.defined() ? from_output + from_parameters : from_output;
}

std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module) {
  const auto named = module.named_parameters();  // items() points into it
  std::vector<std::pair<std::string, at::Tensor>> unique;
  std::unordered_set<const void*> seen;
  for (const auto& item : named.items()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      unique.emplace_back(item.key(), item.value());
    }
  }
  return unique;
}

}  // namespace equigrad::reference
