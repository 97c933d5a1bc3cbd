#include "reference/stepper.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/norm.hpp"

namespace equigrad::reference {
namespace {

// Neighbours first, level by level; an odd last one goes up unchanged.
at::Tensor tree_sum(std::vector<at::Tensor> level, at::ScalarType wide) {
  for (at::Tensor& tensor : level) tensor = tensor.to(wide);
  while (level.size() > 1) {
    std::vector<at::Tensor> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = std::move(next);
  }
  return level[0];
}

// Moves what a graph task gave a leaf out of its .grad.
class Take final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Take(std::shared_ptr<std::vector<at::Tensor>> to) : to_(std::move(to)) {}
  void operator()(const at::Tensor& leaf) override {
    to_->push_back(std::exchange(leaf.mutable_grad(), {}).detach());
  }

 private:
  std::shared_ptr<std::vector<at::Tensor>> to_;
};

template <class Real>
void run_update(const OptimizerSpec& spec, int64_t step, at::Tensor& master, TensorMap& state,
                const at::Tensor& gradient) {
  std::vector<Real*> states;
  for (const std::string& name : state_names(spec)) {
    states.push_back(state.at(name).mutable_data_ptr<Real>());
  }
  update<Real>(spec, step, master.numel(), master.mutable_data_ptr<Real>(), states,
               gradient.const_data_ptr<Real>());
}

}  // namespace

at::Tensor sum_contributions(const Contributions& contributions, Order order,
                             at::ScalarType accumulate_dtype, std::vector<double> weights) {
  weights.resize(contributions.size(), 1.0);
  const auto weighed = [](const at::Tensor& wide, double weight) {
    return weight == 1.0 ? wide : wide * weight;
  };
  const at::Tensor& first = contributions[0][0];
  if (order == Order::Exact) {
    at::Tensor sum = at::zeros_like(first, at::kDouble);
    for (size_t pass = 0; pass < contributions.size(); ++pass) {
      for (const at::Tensor& contribution : contributions[pass]) {
        sum += weighed(contribution.to(at::kDouble), weights[pass]);
      }
    }
    return sum;
  }
  const bool oracle = first.scalar_type() == at::kDouble;
  const at::ScalarType wide = oracle ? at::kDouble : at::kFloat;
  const at::ScalarType narrow = oracle ? at::kDouble : accumulate_dtype;
  if (order == Order::AddThenReduce) {
    std::vector<at::Tensor> windows;
    for (size_t rank = 0; rank < contributions[0].size(); ++rank) {
      at::Tensor window = at::zeros_like(first, narrow);
      for (size_t pass = 0; pass < contributions.size(); ++pass) {
        const at::Tensor term = weighed(contributions[pass][rank].to(wide), weights[pass]);
        window = (window.to(wide) + term).to(narrow);
      }
      windows.push_back(window);
    }
    return tree_sum(windows, wide).to(narrow);
  }
  at::Tensor sum;
  for (size_t pass = 0; pass < contributions.size(); ++pass) {
    const at::Tensor reduced = weighed(tree_sum(contributions[pass], wide), weights[pass]);
    sum = (sum.defined() ? sum.to(wide) + reduced : reduced).to(narrow);
  }
  return sum;
}

Stepper::Stepper(const Recipe& recipe, std::shared_ptr<Model> model)
    : recipe_(recipe),
      model_(std::move(model)),
      weights_(static_cast<size_t>(std::max<int64_t>(recipe.world, 0))) {
  TORCH_CHECK(recipe.world > 0 && recipe.accumulation_steps > 0,
              "[stepper] expected at least one rank and one micro-batch, got ", recipe.world,
              " and ", recipe.accumulation_steps, ".");
  TORCH_CHECK(recipe.compute_dtype == at::kFloat || recipe.compute_dtype == at::kBFloat16 ||
                  recipe.compute_dtype == at::kDouble,
              "[stepper] expected fp32, bf16 or fp64, got ", recipe.compute_dtype, ".");
  make_slots();
}

void Stepper::make_slots() {
  std::map<std::string, OptimizerSpec> specs;
  for (const GroupSpec& group : model_->groups()) {
    OptimizerSpec spec = recipe_.optimizer;
    spec.lr = group.lr.value_or(spec.lr);
    spec.weight_decay = group.weight_decay.value_or(spec.weight_decay);
    for (const std::string& name : group.names) specs[name] = spec;
  }
  const bool rounded = recipe_.compute_dtype == at::kBFloat16;
  if (!rounded) model_->to(recipe_.compute_dtype);
  for (const auto& [name, parameter] : unique_parameters(*model_)) {
    Slot slot;
    slot.name = name;
    slot.parameter = parameter;
    slot.spec = specs[name];
    if (parameter.requires_grad() && parameter.numel() > 0) {
      slot.master = rounded ? parameter.detach().clone() : parameter.detach();
      for (const std::string& state : state_names(slot.spec)) {
        slot.state[state] = at::zeros_like(slot.master);
      }
    }
    slot.passes.resize(weights_.size());
    slot.arrived = std::make_shared<Parts>();
    slots_.push_back(std::move(slot));
  }
  if (rounded) model_->to(recipe_.compute_dtype);
  for (Slot& slot : slots_) {
    if (!slot.parameter.requires_grad()) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(slot.parameter,
                                                   std::make_unique<Take>(slot.arrived));
  }
}

void Stepper::pass(int64_t rank, const std::function<void()>& backward, double weight) {
  for (Slot& slot : slots_) slot.arrived->clear();
  backward();
  weights_[static_cast<size_t>(rank)].push_back(weight);
  for (Slot& slot : slots_) {
    slot.passes[static_cast<size_t>(rank)].push_back(std::exchange(*slot.arrived, {}));
  }
}

void Stepper::discard(int64_t rank) {
  weights_[static_cast<size_t>(rank)].clear();
  for (Slot& slot : slots_) {
    slot.passes[static_cast<size_t>(rank)].clear();
    if (rank == 0) slot.assigned.reset();
  }
}

void Stepper::set_lr(double lr) {
  for (Slot& slot : slots_) slot.spec.lr = lr;
}

const Stepper::Slot& Stepper::slot_of(const std::string& name) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&name](const Slot& slot) {
    return slot.name == name && slot.master.defined();
  });
  TORCH_CHECK(found != slots_.end(), "[stepper] expected a trained parameter, got ", name, ".");
  return *found;
}

at::Tensor Stepper::get(const std::string& what, const std::string& name) const {
  const Slot& slot = slot_of(name);
  if (what != "gradient") return (what == "master" ? slot.master : slot.state.at(what)).clone();
  StepRecord record;
  average(slot, record);
  return record.gradients[name];
}

void Stepper::set(const std::string& what, const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  auto& slot = const_cast<Slot&>(slot_of(name));
  if (what == "gradient") {
    for (auto& passes : slot.passes) {
      for (Parts& parts : passes) parts.clear();
    }
    slot.assigned = value.to(slot.master.scalar_type()).clone();
  } else if (what == "master") {
    slot.master.copy_(value);
    slot.parameter.copy_(slot.master);
  } else {
    slot.state.at(what).copy_(value);
    // SGD's first step would not read it.
    if (slot.spec.rule == Rule::Sgd) slot.step_count = std::max<int64_t>(slot.step_count, 1);
  }
}

StepRecord Stepper::step() {
  for (const auto& weights : weights_) {
    TORCH_CHECK(weights == weights_[0], "[stepper] expected equal passes on every rank.");
  }
  StepRecord record;
  const at::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    if (slot.master.defined()) average(slot, record);
  }
  clip(record);
  for (Slot& slot : slots_) {
    const auto gradient = record.gradients.find(slot.name);
    if (gradient != record.gradients.end() && !record.skipped) apply(slot, gradient->second);
  }
  for (int64_t rank = 0; rank < recipe_.world; ++rank) discard(rank);
  copy_weights(record);
  return record;
}

void Stepper::average(const Slot& slot, StepRecord& record) const {
  const double factor = 1.0 / static_cast<double>(recipe_.accumulation_steps * recipe_.world);
  Contributions contributions;
  std::vector<double> weights;
  at::Tensor absolute = at::zeros_like(slot.master, at::kDouble);
  for (size_t pass = 0; pass < weights_[0].size(); ++pass) {
    size_t parts = 0;
    for (const auto& rank : slot.passes) parts = std::max(parts, rank[pass].size());
    for (size_t part = 0; part < parts; ++part) {
      weights.push_back(weights_[0][pass]);
      auto& ranks = contributions.emplace_back();
      for (const auto& rank : slot.passes) {
        const bool there = part < rank[pass].size();
        ranks.push_back(there ? rank[pass][part] : at::zeros_like(slot.parameter));
        absolute += ranks.back().abs().to(at::kDouble) * weights.back();
      }
    }
  }
  if (contributions.empty()) {  // no rank used it
    if (slot.assigned.defined()) record.gradients[slot.name] = slot.assigned.clone();
    return;
  }
  const at::Tensor sum =
      sum_contributions(contributions, recipe_.order, recipe_.accumulate_dtype, weights);
  // A number is rounded to the tensor's dtype before it multiplies.
  const at::ScalarType dtype = slot.master.scalar_type();
  const at::Tensor mean = (sum.scalar_type() == at::kDouble ? sum : sum.to(dtype)) * factor;
  at::Tensor& gradient = record.gradients[slot.name] = mean.to(dtype).contiguous();
  if (slot.assigned.defined()) gradient = gradient + slot.assigned;
  if (recipe_.absolute_sums) record.absolute_sum[slot.name] = absolute * factor;
}

void Stepper::clip(StepRecord& record) const {
  ExactSum squares;
  for (const auto& item : record.gradients) {
    const at::Tensor flat = item.second.to(at::kDouble).contiguous();
    const double* values = flat.const_data_ptr<double>();
    for (int64_t i = 0; i < flat.numel(); ++i) squares.add_square(values[i]);
  }
  record.grad_norm = std::sqrt(squares.value());
  record.skipped = !std::isfinite(record.grad_norm);
  if (record.skipped) return;
  const double factor = clip_factor(record.grad_norm, recipe_.gradient_clipping);
  if (factor == 1.0) return;
  for (auto& item : record.gradients) item.second = item.second * factor;
}

void Stepper::apply(Slot& slot, const at::Tensor& gradient) {
  ++slot.step_count;
  if (slot.master.scalar_type() == at::kDouble) {
    run_update<double>(slot.spec, slot.step_count, slot.master, slot.state, gradient);
  } else {
    run_update<float>(slot.spec, slot.step_count, slot.master, slot.state, gradient);
  }
  if (recipe_.compute_dtype == at::kBFloat16) slot.parameter.copy_(slot.master);
}

void Stepper::copy_weights(StepRecord& record) const {
  for (const Slot& slot : slots_) {
    record.parameters[slot.name] = slot.parameter.detach().clone();
    if (!slot.master.defined()) continue;
    record.masters[slot.name] = slot.master.clone();
    record.step_count[slot.name] = slot.step_count;
    for (const auto& [name, state] : slot.state) record.state[name][slot.name] = state.clone();
  }
}

}  // namespace equigrad::reference
