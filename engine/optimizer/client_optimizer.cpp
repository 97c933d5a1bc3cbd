#include "engine/optimizer/client_optimizer.hpp"

#include <c10/util/ScopeExit.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "engine/error.hpp"

namespace equigrad::optimizer {
namespace {

using torch::optim::OptimizerParamState;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor*>>;

template <class State>
NamedTensors moments(State& state) {
  return {{"exp_avg", &state.exp_avg()},
          {"exp_avg_sq", &state.exp_avg_sq()},
          {"max_exp_avg_sq", &state.max_exp_avg_sq()}};
}

// What a state of torch's holds, defined or not; nothing of other classes.
NamedTensors tensors_of(OptimizerParamState& state) {
  using namespace torch::optim;
  if (auto* sgd = dynamic_cast<SGDParamState*>(&state))
    return {{"momentum_buffer", &sgd->momentum_buffer()}};
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) return moments(*adam);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) return moments(*adamw);
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state))
    return {{"square_avg", &rmsprop->square_avg()},
            {"momentum_buffer", &rmsprop->momentum_buffer()},
            {"grad_avg", &rmsprop->grad_avg()}};
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) return {{"sum", &adagrad->sum()}};
  return {};
}

// Null where there are no steps.
std::optional<int64_t> steps_in(const OptimizerParamState& state) {
  using namespace torch::optim;
  if (const auto* adam = dynamic_cast<const AdamParamState*>(&state)) return adam->step();
  if (const auto* adamw = dynamic_cast<const AdamWParamState*>(&state)) return adamw->step();
  if (const auto* rms = dynamic_cast<const RMSpropParamState*>(&state)) return rms->step();
  if (const auto* adagrad = dynamic_cast<const AdagradParamState*>(&state)) return adagrad->step();
  return {};
}

void set_steps(OptimizerParamState& state, int64_t steps) {
  using namespace torch::optim;
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) adam->step(steps);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) adamw->step(steps);
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) rmsprop->step(steps);
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) adagrad->step(steps);
}

struct Kind {
  const char* name;
  bool (*is)(const torch::optim::Optimizer& optimizer);
  std::unique_ptr<OptimizerParamState> (*make_state)();
};

template <class Optimizer, class State>
constexpr Kind kind(const char* name) {
  return {name,
          [](const torch::optim::Optimizer& optimizer) {
            return dynamic_cast<const Optimizer*>(&optimizer) != nullptr;
          },
          []() -> std::unique_ptr<OptimizerParamState> { return std::make_unique<State>(); }};
}

// Null for a class that is none of torch's.
const Kind* kind_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  static constexpr Kind kKinds[] = {kind<SGD, SGDParamState>("torch::optim::SGD"),
                                    kind<Adam, AdamParamState>("torch::optim::Adam"),
                                    kind<AdamW, AdamWParamState>("torch::optim::AdamW"),
                                    kind<RMSprop, RMSpropParamState>("torch::optim::RMSprop"),
                                    kind<Adagrad, AdagradParamState>("torch::optim::Adagrad")};
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [&](const Kind& one) { return one.is(optimizer); });
  return found == std::end(kKinds) ? nullptr : found;
}

std::optional<int64_t> steps_from(const std::string& numbers) {
  if (numbers.empty()) return {};
  int64_t steps = 0;
  const auto* end = numbers.data() + numbers.size();
  const auto read = std::from_chars(numbers.data(), end, steps);
  if (read.ec == std::errc() && read.ptr == end && steps >= 0) return steps;
  throw Error("load_checkpoint",
              "expected an optimizer's step in digits, got \"" + numbers +
                  "\". It is a state of another kind of optimizer: load it into that.");
}

// A group's parameters that the engine trains. What needs no gradient is never updated.
bool is_trained(const at::Tensor& parameter) {
  return parameter.requires_grad() && parameter.numel() > 0;
}

template <class Options>
bool set_beta1(torch::optim::OptimizerOptions& options, double beta1) {
  auto* found = dynamic_cast<Options*>(&options);
  if (found != nullptr) found->betas(std::make_tuple(beta1, std::get<1>(found->betas())));
  return found != nullptr;
}

using SliceByParameter = std::map<const void*, std::size_t>;

void check_groups(torch::optim::Optimizer& optimizer, const std::vector<OwnedSlice>& slices,
                  const SliceByParameter& places) {
  std::vector<bool> taken(slices.size(), false);
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!is_trained(parameter)) continue;
      const auto found = places.find(parameter.unsafeGetTensorImpl());
      if (found == places.end())
        throw Error("initialize",
                    "expected the model's parameters in the optimizer's groups, got a tensor that "
                    "is none of them. Construct the optimizer with model.parameters().");
      if (taken[found->second])
        throw Error("initialize",
                    "expected every parameter once in the optimizer's groups, got \"" +
                        slices[found->second].name +
                        "\" twice. Give a parameter that is tied under one name.");
      taken[found->second] = true;
    }
  }
  for (std::size_t i = 0; i < slices.size(); ++i)
    if (!taken[i])
      throw Error("initialize",
                  "expected every trainable parameter in the optimizer's groups, got "
                  "none that has \"" +
                      slices[i].name + "\". Add it, or set requires_grad of it to false.");
}

}  // namespace

ClientOptimizer::ClientOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer)
    : optimizer_(std::move(optimizer)) {
  if (optimizer_ == nullptr)
    throw Error("initialize",
                "expected an optimizer, got a null pointer. Leave the argument out to have the "
                "configured one.");
  if (dynamic_cast<torch::optim::LBFGS*>(optimizer_.get()) != nullptr)
    throw Error("initialize",
                "expected an optimizer that updates every element by itself, got LBFGS, which "
                "needs whole gradients and a closure. Use SGD, Adam, AdamW, RMSprop or Adagrad.");
}

void ClientOptimizer::own(const std::vector<OwnedSlice>& slices) {
  SliceByParameter places;
  for (std::size_t i = 0; i < slices.size(); ++i)
    places[slices[i].parameter.unsafeGetTensorImpl()] = i;
  check_groups(*optimizer_, slices, places);
  for (const auto& slice : slices) slices_.push_back(slice.master);
  cut_states(slices);
  for (auto& group : optimizer_->param_groups()) {
    std::vector<at::Tensor> mine;
    for (const auto& parameter : group.params())
      if (is_trained(parameter))
        mine.push_back(slices_[places.at(parameter.unsafeGetTensorImpl())]);
    group.params() = std::move(mine);
  }
}

void ClientOptimizer::cut_states(const std::vector<OwnedSlice>& slices) {
  auto& states = optimizer_->state();
  std::map<void*, std::unique_ptr<OptimizerParamState>> cut;
  for (const auto& slice : slices) {
    const auto found = states.find(slice.parameter.unsafeGetTensorImpl());
    if (found == states.end()) continue;
    if (tensors_of(*found->second).empty())
      throw Error("initialize",
                  "expected an optimizer that has not stepped, got one with a state "
                  "of \"" +
                      slice.name + "\" that cannot be cut into slices. Construct a new one.");
    auto state = found->second->clone();
    for (const auto& [name, tensor] : tensors_of(*state))
      if (tensor->defined())
        *tensor = tensor->detach().reshape({-1}).slice(0, slice.begin, slice.end).clone();
    cut[slice.master.unsafeGetTensorImpl()] = std::move(state);
  }
  states.clear();
  for (auto& [slice, state] : cut) states[slice] = std::move(state);
}

void ClientOptimizer::step(const std::vector<at::Tensor>& gradients) {
  EQUIGRAD_CHECK(gradients.size() == slices_.size(), "optimizer.step",
                 "every slice has a gradient, defined or not");
  const auto forget = c10::make_scope_exit([this] {
    for (auto& slice : slices_) slice.mutable_grad().reset();
  });
  for (std::size_t i = 0; i < slices_.size(); ++i) slices_[i].mutable_grad() = gradients[i];
  optimizer_->step();
}

std::vector<double> ClientOptimizer::lr() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void ClientOptimizer::set_rates(const std::vector<double>& lr, const std::vector<double>& beta1) {
  auto& groups = optimizer_->param_groups();
  EQUIGRAD_CHECK(lr.size() <= groups.size() && beta1.size() <= groups.size(), "optimizer.rates",
                 "there is a group for every rate");
  for (std::size_t group = 0; group < lr.size(); ++group) groups[group].options().set_lr(lr[group]);
  for (std::size_t group = 0; group < beta1.size(); ++group) {
    auto& options = groups[group].options();
    set_beta1<torch::optim::AdamOptions>(options, beta1[group]) ||
        set_beta1<torch::optim::AdamWOptions>(options, beta1[group]);
  }
}

std::vector<std::string> ClientOptimizer::state_names(std::size_t slice) const {
  const auto& master = slices_.at(slice);
  const auto found = optimizer_->state().find(master.unsafeGetTensorImpl());
  std::vector<std::string> names;
  if (found == optimizer_->state().end()) return names;
  for (const auto& [name, tensor] : tensors_of(*found->second))
    if (tensor->defined() && tensor->sizes() == master.sizes()) names.push_back(name);
  return names;
}

at::Tensor ClientOptimizer::state(std::size_t slice, const std::string& name) {
  for (const auto& [known, tensor] :
       tensors_of(*optimizer_->state().at(slices_.at(slice).unsafeGetTensorImpl())))
    if (known == name) return *tensor;
  return {};
}

std::string ClientOptimizer::kind() const {
  const auto* kind = kind_of(*optimizer_);
  const auto& optimizer = *optimizer_;
  return kind != nullptr ? kind->name : typeid(optimizer).name();
}

std::string ClientOptimizer::numbers(std::size_t slice) const {
  const auto found = optimizer_->state().find(slices_.at(slice).unsafeGetTensorImpl());
  if (found == optimizer_->state().end()) return {};
  if (tensors_of(*found->second).empty())
    throw Error("save_checkpoint",
                "expected an optimizer whose states can be kept, got one of a class that is not "
                "known. Use SGD, Adam, AdamW, RMSprop or Adagrad, or a SliceOptimizer.");
  const auto steps = steps_in(*found->second);
  return steps ? std::to_string(*steps) : std::string();
}

void ClientOptimizer::restore(std::size_t slice, const SliceStates& states,
                              const std::string& numbers) {
  void* const key = slices_.at(slice).unsafeGetTensorImpl();
  const auto steps = steps_from(numbers);
  if (states.empty() && !steps) {
    optimizer_->state().erase(key);
    return;
  }
  const auto* kind = kind_of(*optimizer_);
  auto state = kind != nullptr ? kind->make_state() : nullptr;
  const auto known = state ? tensors_of(*state) : NamedTensors();
  for (const auto& given : states) {
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const auto& one) { return one.first == given.first; });
    if (found == known.end())
      throw Error("load_checkpoint", "expected a state that this optimizer has, got \"" +
                                         given.first +
                                         "\". Load it into one like that which was saved.");
    *found->second = given.second.clone();
  }
  if (steps && (!state || !steps_in(*state)))
    throw Error("load_checkpoint",
                "expected an optimizer that counts steps, got one that does not. Load the state "
                "into one like that which was saved.");
  if (steps) set_steps(*state, *steps);
  optimizer_->state()[key] = std::move(state);
}

int64_t ClientOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [slice, state] : optimizer_->state())
    for (const auto& [name, tensor] : tensors_of(*state))
      if (tensor->defined()) bytes += static_cast<int64_t>(tensor->nbytes());
  return bytes;
}

}  // namespace equigrad::optimizer
