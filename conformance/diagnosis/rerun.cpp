#include "conformance/diagnosis/rerun.hpp"

#include <torch/types.h>

#include "conformance/cases/linear_model.hpp"
#include "conformance/cases/recipe.hpp"
#include "reference/autocast.hpp"

namespace equigrad::conformance {

Rerun::Rerun(const DiagnosisInput& input)
    : input_(input),
      model_(std::make_shared<OverflowingModel>(make_case_model(input.spec.model, input.seed))) {
  for (auto& [name, parameter] : reference::unique_parameters(*model_)) {
    at::Tensor(parameter).set_data(parameter.detach().to(dtype_of(input.spec)));
    parameters_[name] = parameter;
    const auto lowered = input.communication_dtypes.find(name);
    auto made = parameter.detach().clone();
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

at::Tensor Rerun::loss(int step, int rank, int micro_batch) {
  const auto& spec = input_.spec;
  const auto batch = reference::to_dtype(
      make_case_batch(
          input_.data, spec.model,
          {.seed = input_.seed, .step = step, .rank = rank, .micro_batch = micro_batch}),
      dtype_of(spec));
  model_->set_loss_factor(
      overflowing_batch(spec) == OverflowingBatch{step, rank, micro_batch} ? kOverflowFactor : 1);
  const auto recipe = recipe_of(spec, input_.seed, 0, order_of(spec));
  const reference::AutocastGuard autocast(recipe.precision.autocast);
  return model_->loss(batch);
}

void Rerun::run(int step) {
  set_all(step - 1);
  const double scale = input_.twin.loss_scale(step);
  contributions_.clear();
  for (int rank = 0; rank < input_.spec.world; ++rank) {
    for (auto& [name, parameter] : parameters_) contributions_[name].emplace_back();
    for (int index = 0; index < input_.spec.accumulation; ++index) {
      model_->zero_grad();
      (reference::widen(loss(step, rank, index)) * scale).backward();
      for (const auto& [name, parameter] : parameters_) {
        const auto gradient =
            parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter);
        contributions_[name].back().push_back(
            gradient.detach().flatten().to(at::kFloat).div(scale));
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
    all.emplace_back("the forward read " + weights,
                     loss(pass.step, input_.rank, pass.micro_batch).item<double>());
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
    const int64_t shards = input_.spec.world, numel = (right.numel() + shards - 1) / shards;
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
