#include "conformance/cases/model_parts.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <utility>

namespace equigrad::conformance {
namespace {

using torch::autograd::AutogradContext;
using PartList = torch::autograd::variable_list;

// Of parts that are stacked.
struct SumOfParts : torch::autograd::Function<SumOfParts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& parts) {
    context->saved_data["parts"] = parts.size(0);
    return tree_sum(parts.unbind(0));
  }
  static PartList backward(AutogradContext* context, const PartList& gradients) {
    const auto parts = static_cast<size_t>(context->saved_data["parts"].toInt());
    return {at::stack(PartList(parts, gradients[0]))};
  }
};

struct OwnGradient : torch::autograd::Function<OwnGradient> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& part) { return part.clone(); }
  static PartList backward(AutogradContext*, const PartList& gradients) {
    return {gradients[0].clone()};
  }
};

}  // namespace

at::Tensor stack_of_parts(const std::vector<at::Tensor>& parts) {
  PartList apart;
  for (const at::Tensor& part : parts) apart.push_back(OwnGradient::apply(part));
  return at::stack(apart);
}

at::Tensor PartwiseModel::own(const at::Tensor& parameter, int64_t part) const {
  const bool is_own = part_ < 0 || part_ == part;
  return is_own || !parameter.defined() ? parameter : parameter.detach();
}

void take_part(reference::Model& model, int64_t part) {
  if (auto* of_sequences = dynamic_cast<PartwiseModel*>(&model)) of_sequences->take_part(part);
}

at::Tensor tree_sum(const std::vector<at::Tensor>& parts) {
  PartList level;
  for (const at::Tensor& part : parts) level.push_back(reference::widen(part));
  while (level.size() > 1) {
    PartList next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = std::move(next);
  }
  return level[0].to(parts[0].scalar_type());
}

at::Tensor sum_of_parts(const std::vector<at::Tensor>& parts) {
  return SumOfParts::apply(stack_of_parts(parts));
}

void set_values(const reference::Model& model, uint64_t seed) {
  uint64_t key = reference::hash(seed);
  for (const auto& [name, parameter] : reference::unique_parameters(model)) {
    const bool is_matrix = parameter.dim() >= 2;
    const double width =
        is_matrix ? std::sqrt(3.0 / static_cast<double>(parameter.size(1))) : 0.125;
    const double center = is_matrix || name.ends_with("bias") ? 0 : 1;
    float* values = parameter.detach().mutable_data_ptr<float>();
    for (int64_t i = 0; i < parameter.numel(); ++i) {
      key = reference::hash(key);
      const auto uniform = static_cast<double>(static_cast<int64_t>(key >> 40) | 1) / 0x1p23 - 1;
      values[i] = static_cast<float>(center + width * uniform);  // uniform is in (-1, 1), never 0
    }
  }
}

}  // namespace equigrad::conformance
