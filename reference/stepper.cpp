#include "reference/stepper.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "reference/norm.hpp"

namespace equigrad::reference {
namespace {

// Moves what a graph task gave a leaf out of its .grad.
class Take final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Take(std::shared_ptr<std::vector<at::Tensor>> to) : to_(std::move(to)) {}
  void operator()(const at::Tensor& leaf) override {
    to_->push_back(std::exchange(leaf.mutable_grad(), {}).detach().cpu());
  }

 private:
  std::shared_ptr<std::vector<at::Tensor>> to_;
};

// Parameter and states, in the order of state_names().
template <class Real>
void run_update(const OptimizerSpec& spec, int64_t step, std::vector<at::Tensor>& wide,
                const at::Tensor& gradient) {
  std::vector<Real*> data;
  for (at::Tensor& tensor : wide) data.push_back(tensor.mutable_data_ptr<Real>());
  update<Real>(spec, step, gradient.numel(), data[0], {data.begin() + 1, data.end()},
               gradient.const_data_ptr<Real>());
}

void set_by_group(std::vector<OptimizerSpec>& groups, double OptimizerSpec::*setting,
                  const std::vector<double>& values) {
  TORCH_CHECK(values.size() == groups.size(), "[stepper] expected one value for each of ",
              groups.size(), " groups, got ", values.size(), ".");
  for (size_t group = 0; group < groups.size(); ++group) groups[group].*setting = values[group];
}

void put(const at::Tensor& to, const at::Tensor& from) {
  if (!to.is_alias_of(from)) to.copy_(from);
}

}  // namespace

Stepper::Stepper(const Recipe& recipe, std::shared_ptr<Model> model)
    : recipe_(recipe),
      model_(std::move(model)),
      weights_(static_cast<size_t>(std::max<int64_t>(recipe.world, 0))),
      shared_(std::make_shared<SharedScale>(SharedScale{LossScale(recipe.precision.loss_scale)})) {
  check(recipe);
  make_slots();
}

// Which group each name is in.
std::map<std::string, size_t> Stepper::make_groups() {
  std::map<std::string, size_t> group_of;
  for (const GroupSpec& group : model_->groups()) {
    OptimizerSpec& spec = groups_.emplace_back(recipe_.optimizer);
    spec.lr = group.lr.value_or(spec.lr);
    spec.weight_decay = group.weight_decay.value_or(spec.weight_decay);
    for (const std::string& name : group.names) {
      const bool is_first = group_of.emplace(name, groups_.size() - 1).second;
      TORCH_CHECK(is_first, "[stepper] expected ", name, " in one group, got it in two.");
    }
  }
  return group_of;
}

void Stepper::make_slots() {
  const at::NoGradGuard no_grad;
  const auto group_of = make_groups();
  const PrecisionSpec& precision = recipe_.precision;
  std::set<const void*> safe;
  if (precision.autocast) safe = safe_parameters(*model_, precision.autocast->safe_modules);
  for (const auto& [name, parameter] : unique_parameters(*model_)) {
    Slot slot;
    slot.name = name;
    slot.parameter = parameter;
    if (parameter.requires_grad()) {
      const auto group = group_of.find(name);
      TORCH_CHECK(group != group_of.end(), "[stepper] expected ", name, " in a group, got none.");
      slot.group = group->second;
    }
    slot.safe = safe.contains(parameter.unsafeGetTensorImpl());
    slot.sent_in = precision.communication_dtype;
    if (slot.safe && !slot.sent_in) slot.sent_in = precision.autocast->dtype;
    convert(slot);
    slot.passes.resize(weights_.size());
    slot.arrived = std::make_shared<Parts>();
    if (parameter.requires_grad())
      torch::autograd::impl::set_post_acc_grad_hooks(slot.parameter,
                                                     std::make_unique<Take>(slot.arrived));
    slots_.push_back(std::move(slot));
  }
  if (recipe_.compute_dtype != at::kDouble) return;
  for (at::Tensor& buffer : model_->buffers()) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(at::kDouble));
  }
}

void Stepper::convert(Slot& slot) {
  const at::ScalarType compute = recipe_.compute_dtype;
  const bool oracle = compute == at::kDouble;
  const at::Tensor given = slot.parameter.detach();  // keeps the unrounded weights
  if (given.is_floating_point() && given.scalar_type() != compute)
    slot.parameter.set_data(given.to(compute));
  if (!slot.parameter.requires_grad() || slot.parameter.numel() == 0) return;
  const at::ScalarType master = oracle ? compute : recipe_.precision.master_dtype;
  const at::ScalarType state = oracle ? compute : recipe_.precision.state_dtype;
  const bool own = master == compute && !slot.safe && given.is_cpu();
  slot.master = own ? slot.parameter.detach() : given.to(at::kCPU, master, false, /*copy=*/true);
  for (const std::string& name : state_names(spec_of(slot))) {
    slot.state[name] = at::zeros_like(slot.master, state);
  }
  show(slot);
}

// The model sees the masters.
void Stepper::show(Slot& slot) {
  const at::ScalarType sent =
      slot.safe ? recipe_.precision.autocast->dtype : slot.master.scalar_type();
  put(slot.parameter, slot.master.to(sent));
}

void Stepper::pass(int64_t rank, const std::function<void()>& backward, double weight) {
  for (Slot& slot : slots_) slot.arrived->clear();
  backward();
  weights_[static_cast<size_t>(rank)].push_back(weight);
  ++shared_->passes;
  for (Slot& slot : slots_) {
    slot.passes[static_cast<size_t>(rank)].push_back(std::exchange(*slot.arrived, {}));
  }
}

void Stepper::discard(int64_t rank) {
  shared_->passes -= weights_[static_cast<size_t>(rank)].size();
  weights_[static_cast<size_t>(rank)].clear();
  for (Slot& slot : slots_) {
    slot.passes[static_cast<size_t>(rank)].clear();
    if (rank == 0) slot.assigned.reset();
  }
  if (shared_->passes > 0 || !shared_->stepped) return;
  shared_->stepped = false;
  shared_->scale.update(std::exchange(shared_->overflow, false));
}

void Stepper::share_loss_scale(Stepper& other) {
  TORCH_CHECK(shared_->scale.spec() == other.shared_->scale.spec() && shared_->passes == 0 &&
                  other.shared_->passes == 0 &&
                  (shared_ == other.shared_ || other.shared_.use_count() == 1),
              "[stepper] expected equal settings, no passes and no third stepper that is left ",
              "behind, to share a loss scale.");
  other.shared_ = shared_;
}

void Stepper::forget_states() {
  for (Slot& slot : slots_) {
    for (auto& [name, state] : slot.state) state.zero_();
    slot.step_count = 0;
  }
}

void Stepper::forget_loss_scale() { shared_->scale = LossScale(recipe_.precision.loss_scale); }

void Stepper::set_lr(double lr) { set_lr(std::vector<double>(groups_.size(), lr)); }

void Stepper::set_lr(const std::vector<double>& by_group) {
  set_by_group(groups_, &OptimizerSpec::lr, by_group);
}

void Stepper::set_beta1(const std::vector<double>& by_group) {
  set_by_group(groups_, &OptimizerSpec::beta1, by_group);
}

std::vector<double> Stepper::lr() const {
  std::vector<double> by_group;
  for (const OptimizerSpec& group : groups_) by_group.push_back(group.lr);
  return by_group;
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
    show(slot);
  } else {
    slot.state.at(what).copy_(value);
    // SGD's first step would not read it.
    if (spec_of(slot).rule == Rule::Sgd) slot.step_count = std::max<int64_t>(slot.step_count, 1);
  }
}

StepRecord Stepper::step() {
  for (const auto& weights : weights_) {
    TORCH_CHECK(weights == weights_[0], "[stepper] expected equal passes on every rank.");
  }
  StepRecord record;
  record.loss_scale = loss_scale();
  const at::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    if (slot.master.defined()) average(slot, record);
  }
  clip(record);
  for (Slot& slot : slots_) {
    const auto gradient = record.gradients.find(slot.name);
    if (gradient != record.gradients.end() && !record.skipped) apply(slot, gradient->second);
  }
  shared_->stepped = true;
  shared_->overflow = shared_->overflow || record.skipped;
  for (int64_t rank = 0; rank < recipe_.world; ++rank) discard(rank);
  copy_weights(record);
  return record;
}

void Stepper::average(const Slot& slot, StepRecord& record) const {
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
        ranks.push_back(there ? rank[pass][part] : at::zeros_like(slot.parameter).cpu());
        absolute += ranks.back().abs().to(at::kDouble) * weights.back();
      }
    }
  }
  if (contributions.empty()) {  // no rank used it
    if (slot.assigned.defined()) record.gradients[slot.name] = slot.assigned.clone();
    return;
  }
  const Factors factor = factors(recipe_);
  const at::Tensor sum = sum_contributions(contributions, recipe_.order, recipe_.accumulate_dtype,
                                           weights, {factor.before, slot.sent_in});
  // A number is rounded to the tensor's dtype before it multiplies.
  const at::Tensor mean = widen(sum) * (factor.after / loss_scale());
  const at::ScalarType dtype = slot.master.scalar_type();
  at::Tensor& gradient = record.gradients[slot.name] = mean.to(dtype).contiguous();
  if (slot.assigned.defined()) gradient = (widen(gradient) + widen(slot.assigned)).to(dtype);
  if (!recipe_.absolute_sums) return;
  record.absolute_sum[slot.name] = absolute * (factor.in_all / loss_scale());
}

void Stepper::clip(StepRecord& record) const {
  ExactSum squares;
  at::Tensor largest = at::zeros({}, at::kDouble);
  for (const auto& item : record.gradients) {
    const at::Tensor flat = item.second.to(at::kDouble).contiguous();
    largest = at::maximum(largest, flat.abs().max());  // NaN wins
    const double* values = flat.const_data_ptr<double>();
    for (int64_t i = 0; i < flat.numel(); ++i) squares.add_square(values[i]);
  }
  record.grad_norm =
      recipe_.precision.infinity_norm ? largest.item<double>() : std::sqrt(squares.value());
  record.skipped = !std::isfinite(record.grad_norm);
  if (record.skipped) return;
  const double factor = clip_factor(record.grad_norm, recipe_.gradient_clipping);
  if (factor == 1.0) return;
  for (auto& item : record.gradients) {
    item.second = (widen(item.second) * factor).to(item.second.scalar_type());
  }
}

// What is narrower than fp32 is widened for the update and rounded once after it; what is not is
// updated in place.
void Stepper::apply(Slot& slot, const at::Tensor& gradient) {
  ++slot.step_count;
  std::vector<at::Tensor> stored = {slot.master}, wide;
  for (const std::string& name : state_names(spec_of(slot))) stored.push_back(slot.state.at(name));
  // In the order of the shape, as the gradient is, whatever the strides.
  for (const at::Tensor& tensor : stored) wide.push_back(widen(tensor).contiguous());
  const bool oracle = slot.master.scalar_type() == at::kDouble;
  (oracle ? run_update<double> : run_update<float>)(spec_of(slot), slot.step_count, wide,
                                                    widen(gradient));
  for (size_t i = 0; i < stored.size(); ++i) put(stored[i], wide[i]);
  show(slot);
}

void Stepper::copy_weights(StepRecord& record) const {
  for (const Slot& slot : slots_) {
    record.parameters[slot.name] = slot.parameter.detach().cpu().clone();
    if (!slot.master.defined()) continue;
    record.masters[slot.name] = slot.master.clone();
    record.step_count[slot.name] = slot.step_count;
    for (const auto& [name, state] : slot.state) record.state[name][slot.name] = state.clone();
  }
}

}  // namespace equigrad::reference
