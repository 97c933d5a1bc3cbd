#include "reference/trainer.hpp"

#include <ATen/ATen.h>

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
                             at::ScalarType accumulate_dtype) {
  const at::Tensor& first = contributions[0][0];
  if (order == Order::Exact) {
    at::Tensor sum = at::zeros_like(first, at::kDouble);
    for (const auto& ranks : contributions) {
      for (const at::Tensor& contribution : ranks) sum += contribution.to(at::kDouble);
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
      for (const auto& ranks : contributions) {
        window = (window.to(wide) + ranks[rank].to(wide)).to(narrow);
      }
      windows.push_back(window);
    }
    return tree_sum(windows, wide).to(narrow);
  }
  at::Tensor sum;
  for (const auto& ranks : contributions) {
    const at::Tensor reduced = tree_sum(ranks, wide);
    sum = (sum.defined() ? sum.to(wide) + reduced : reduced).to(narrow);
  }
  return sum;
}

Trainer::Trainer(const Recipe& recipe, const Data& data)
    : Trainer(recipe, make_model(recipe.model, recipe.seed),
              [&data, recipe](int64_t step, int64_t rank, int64_t micro_batch) {
                return data.make_batch(recipe.model, {recipe.seed, step, rank, micro_batch});
              }) {}

Trainer::Trainer(const Recipe& recipe, std::shared_ptr<Model> model, BatchSource batches)
    : recipe_(recipe), model_(std::move(model)), batches_(std::move(batches)) {
  TORCH_CHECK(recipe.world > 0 && recipe.accumulation_steps > 0,
              "[trainer] expected at least one rank and one micro-batch, got ", recipe.world,
              " and ", recipe.accumulation_steps, ".");
  TORCH_CHECK(recipe.compute_dtype == at::kFloat || recipe.compute_dtype == at::kBFloat16 ||
                  recipe.compute_dtype == at::kDouble,
              "[trainer] expected fp32, bf16 or fp64, got ", recipe.compute_dtype, ".");
  make_slots();
}

void Trainer::make_slots() {
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
      slot.contributions.assign(static_cast<size_t>(recipe_.accumulation_steps),
                                std::vector<at::Tensor>(static_cast<size_t>(recipe_.world)));
    }
    slots_.push_back(std::move(slot));
  }
  if (rounded) model_->to(recipe_.compute_dtype);
}

StepRecord Trainer::train_step() {
  StepRecord record;
  for (Slot& slot : slots_) slot.used = false;
  for (int64_t micro_batch = 0; micro_batch < recipe_.accumulation_steps; ++micro_batch) {
    for (int64_t rank = 0; rank < recipe_.world; ++rank) backward_pass(rank, micro_batch, record);
  }
  const at::NoGradGuard no_grad;
  for (Slot& slot : slots_) {
    if (slot.used) average(slot, record);
  }
  clip(record);
  for (Slot& slot : slots_) {
    if (slot.used) apply(slot, record.gradients.at(slot.name));
  }
  copy_weights(record);
  ++step_;
  return record;
}

void Trainer::backward_pass(int64_t rank, int64_t micro_batch, StepRecord& record) {
  const Batch batch = to_dtype(batches_(step_, rank, micro_batch), recipe_.compute_dtype);
  const at::Tensor loss = model_->loss(batch);
  loss.backward();
  record.losses.push_back(loss.detach().clone());
  for (Slot& slot : slots_) {
    const at::Tensor gradient = std::exchange(slot.parameter.mutable_grad(), {});
    if (!slot.master.defined()) continue;
    slot.used = slot.used || gradient.defined();
    slot.contributions[static_cast<size_t>(micro_batch)][static_cast<size_t>(rank)] =
        gradient.defined() ? gradient : at::zeros_like(slot.parameter);
  }
}

void Trainer::average(Slot& slot, StepRecord& record) {
  const double factor = 1.0 / static_cast<double>(recipe_.accumulation_steps * recipe_.world);
  const at::ScalarType dtype = slot.master.scalar_type();
  const at::Tensor sum =
      sum_contributions(slot.contributions, recipe_.order, recipe_.accumulate_dtype);
  // A number is rounded to the tensor's dtype before it multiplies.
  const at::Tensor mean = (sum.scalar_type() == at::kDouble ? sum : sum.to(dtype)) * factor;
  record.gradients[slot.name] = mean.to(dtype).contiguous();
  if (!recipe_.absolute_sums) return;
  at::Tensor absolute = at::zeros_like(slot.master, at::kDouble);
  for (const auto& ranks : slot.contributions) {
    for (const at::Tensor& contribution : ranks) absolute += contribution.abs().to(at::kDouble);
  }
  record.absolute_sum[slot.name] = absolute * factor;
}

void Trainer::clip(StepRecord& record) {
  ExactSum squares;
  for (const auto& item : record.gradients) {
    const at::Tensor flat = item.second.to(at::kDouble).contiguous();
    const double* values = flat.const_data_ptr<double>();
    for (int64_t i = 0; i < flat.numel(); ++i) squares.add_square(values[i]);
  }
  record.grad_norm = std::sqrt(squares.value());
  const double factor = clip_factor(record.grad_norm, recipe_.gradient_clipping);
  if (factor == 1.0) return;
  for (auto& item : record.gradients) item.second = item.second * factor;
}

void Trainer::apply(Slot& slot, const at::Tensor& gradient) {
  ++slot.step_count;
  if (slot.master.scalar_type() == at::kDouble) {
    run_update<double>(slot.spec, slot.step_count, slot.master, slot.state, gradient);
  } else {
    run_update<float>(slot.spec, slot.step_count, slot.master, slot.state, gradient);
  }
  if (recipe_.compute_dtype == at::kBFloat16) slot.parameter.copy_(slot.master);
}

void Trainer::copy_weights(StepRecord& record) const {
  for (const Slot& slot : slots_) {
    record.parameters[slot.name] = slot.parameter.detach().clone();
    if (!slot.master.defined()) continue;
    record.masters[slot.name] = slot.master.clone();
    record.step_count[slot.name] = slot.step_count;
    for (const auto& [name, state] : slot.state) record.state[name][slot.name] = state.clone();
  }
}

}  // namespace equigrad::reference
