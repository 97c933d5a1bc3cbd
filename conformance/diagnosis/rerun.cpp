#include "conformance/diagnosis/rerun.hpp"

#include <torch/types.h>

#include "conformance/cases/device.hpp"
#include "reference/autocast.hpp"

namespace equigrad::conformance {

Rerun::Rerun(const DiagnosisInput& input) : input_(input), model_(input.make_model()) {
  for (auto& [name, parameter] : reference::unique_parameters(*model_->model())) {
    at::Tensor(parameter).set_data(parameter.detach().to(input.recipe.compute_dtype));
    parameters_[name] = parameter;
    const auto lowered = input.communication_dtypes.find(name);
    auto made = parameter.detach().to(at::kCPU, parameter.scalar_type(), false, /*copy=*/true);
    if (lowered != input.communication_dtypes.end())
      made = made.to(lowered->second).to(made.scalar_type());
    made_[name] = made.flatten();
  }
}

at::Tensor Rerun::parameter(int step, const std::string& name) const {
  const auto after = step < 0 ? at::Tensor() : input_.twin.tensor(step, "parameter", name);
  return after.defined() ? after : made_.at(name);
}

void Rerun::set(const std::string& name, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  auto& to = parameters_.at(name);
  to.copy_(values.view_as(to));
}

void Rerun::set_all(int step) {
  for (const auto& [name, tensor] : parameters_) set(name, parameter(step, name));
}

Forward Rerun::forward(const Pass& pass) {
  const reference::AutocastGuard autocast(input_.recipe.precision.autocast, device().type());
  return model_->forward(pass, input_.recipe.compute_dtype);
}

void Rerun::set_buffers(int step, int rank) {
  auto buffers = model_->buffers(rank);
  for (auto& [name, values] : buffers) {
    const auto before = step == 0
                            ? at::Tensor()
                            : input_.twin.tensor(step - 1, "buffer" + std::to_string(rank), name);
    if (before.defined()) values = before.view_as(values);
  }
  model_->set_buffers(rank, buffers);
}

double Rerun::loss(const Site& pass) {
  set_buffers(pass.step, input_.rank);
  return forward({pass.step, input_.rank, pass.micro_batch}).loss().item<double>();
}

void Rerun::run(int step) {
  set_all(step - 1);
  const double scale = input_.twin.loss_scale(step);
  contributions_.clear();
  for (int rank = 0; rank < input_.recipe.world; ++rank) {
    set_buffers(step, rank);
    for (auto& [name, parameter] : parameters_) contributions_[name].emplace_back();
    for (int index = 0; index < input_.recipe.accumulation_steps; ++index) {
      model_->model()->zero_grad();
      plain_backward(forward({step, rank, index}), scale);
      for (const auto& [name, parameter] : parameters_) {
        const auto gradient =
            parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter);
        contributions_[name].back().push_back(
            input_.tensor_rank.own(name, gradient.detach().to(at::kCPU, at::kFloat).div(scale)));
      }
    }
  }
}

std::vector<std::vector<at::Tensor>> Rerun::contributions(const std::string& name) const {
  const auto found = contributions_.find(name);
  return found == contributions_.end() ? std::vector<std::vector<at::Tensor>>() : found->second;
}

std::vector<std::pair<std::string, double>> Rerun::other_losses(const Site& pass) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::string, double>> all;
  const auto add = [&](const std::string& weights) {
    all.emplace_back("the forward read " + weights, loss(pass));
  };
  if (pass.step > 0) {
    set_all(pass.step - 2);
    add("the parameters of the step before");
  }
  set_all(pass.step - 1);
  for (const auto& [name, parameter] : parameters_) {
    if (parameter.numel() == 0) continue;
    const auto right = this->parameter(pass.step - 1, name);
    if (pass.step > 0) {
      set(name, this->parameter(pass.step - 2, name));
      add("the previous step's " + name);
    }
    set(name, at::zeros_like(right));
    add("zeros for " + name);
    const int64_t shards = input_.recipe.world, numel = (right.numel() + shards - 1) / shards;
    for (int64_t s = 0; s < shards && shards > 1; ++s) {
      const auto of = " for shard " + std::to_string(s) + " of " + name;
      auto part = right.clone();
      part.slice(0, s * numel, (s + 1) * numel).zero_();
      set(name, part);
      add("zeros" + of);
      if (pass.step == 0) continue;
      part = right.clone();
      part.slice(0, s * numel, (s + 1) * numel)
          .copy_(this->parameter(pass.step - 2, name).slice(0, s * numel, (s + 1) * numel));
      set(name, part);
      add("the previous step's values" + of);
    }
    set(name, right);
  }
  return all;
}

}  // namespace equigrad::conformance
