#include "engine/optimizer/sharded_state.hpp"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "engine/error.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/optimizer/update_rule.hpp"

namespace equigrad::optimizer {

std::vector<OptimizerConfig> by_group(const OptimizerConfig& config,
                                      const std::vector<GroupOverride>& groups) {
  std::vector<OptimizerConfig> all;
  for (const auto& group : groups) {
    all.push_back(config);
    if (group.lr) all.back().lr = *group.lr;
    if (group.weight_decay) all.back().weight_decay = *group.weight_decay;
  }
  return all;
}

ShardedState::ShardedState(std::vector<OptimizerConfig> config_by_group,
                           const layout::ParameterTable& table, const layout::BucketPlan& plan,
                           const StateOptions& options, memory::Ledger& ledger)
    : config_by_group_(std::move(config_by_group)),
      table_(table),
      plan_(plan),
      ledger_(ledger),
      options_(options),
      names_(optimizer::state_names(config_by_group_.at(0))),
      steps_(table.size(), 0) {
  kernels::element_of(options.state, "optimizer.state");
  make_masters();
  const auto place = at::TensorOptions().device(options.device).dtype(options.state);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    states_.push_back(at::zeros({plan.shard_numel()}, place));
    ledger.charge(memory::Category::OptimizerState, static_cast<int64_t>(states_.back().nbytes()));
  }
}

ShardedState::ShardedState(const Client& client, const layout::ParameterTable& table,
                           const layout::BucketPlan& plan, const StateOptions& options,
                           memory::Ledger& ledger)
    : table_(table), plan_(plan), ledger_(ledger), options_(options), steps_(table.size(), 0) {
  if (options.master != at::kFloat || options.state != at::kFloat) {
    throw Error("initialize",
                "expected masters and optimizer states in fp32 with an optimizer of the caller's, "
                "got 16 bits. Drop the keys that store them so, or the optimizer.");
  }
  make_masters();
  client_.emplace(client, table, plan, masters_, ledger);
}

void ShardedState::make_masters() {
  kernels::element_of(options_.master, "optimizer.state");
  const auto place = at::TensorOptions().device(options_.device);
  const bool pin = options_.pin_memory && options_.device.is_cpu() && at::hasCUDA();
  masters_ = at::zeros({plan_.shard_numel()}, place.dtype(options_.master).pinned_memory(pin));
  ledger_.charge(memory::Category::MasterWeights, static_cast<int64_t>(masters_.nbytes()));
}

std::vector<std::string> ShardedState::state_names(std::size_t parameter) const {
  return client_ ? client_->names(parameter) : names_;
}

at::Tensor ShardedState::state(std::size_t parameter, std::size_t index) const {
  if (client_) return client_->state(parameter, index);
  const auto at = plan_.slot_of(parameter);
  if (!at) return states_[index].narrow(0, 0, 0);  // an empty parameter
  const auto& slot = plan_.slot(*at);
  return states_[index].narrow(0, plan_.buckets()[at->bucket].offset + slot.offset,
                               slot.shard_numel);
}

std::vector<double> ShardedState::lr() const {
  if (client_) return client_->optimizer().lr();
  std::vector<double> rates;
  for (const auto& group : config_by_group_) rates.push_back(group.lr);
  return rates;
}

void ShardedState::set_rates(const std::vector<double>& lr, const std::vector<double>& beta1) {
  if (client_) return client_->optimizer().set_rates(lr, beta1);
  EQUIGRAD_CHECK(lr.size() <= config_by_group_.size() && beta1.size() <= config_by_group_.size(),
                 "optimizer.rates", "there is a group for every rate");
  for (std::size_t group = 0; group < lr.size(); ++group) config_by_group_[group].lr = lr[group];
  for (std::size_t group = 0; group < beta1.size(); ++group) {
    config_by_group_[group].beta1 = beta1[group];
  }
}

// SGD's first step stores the momentum without reading it; Adam counts steps for its bias.
void ShardedState::keep_state(std::size_t parameter) {
  if (client_) return;  // its states exist only once it has stepped
  const bool sgd = config_by_group_[table_[parameter].group].kind == OptimizerConfig::Kind::Sgd;
  if (sgd) steps_[parameter] = std::max<int64_t>(steps_[parameter], 1);
}

std::vector<ShardedState::Run> ShardedState::runs(const std::vector<bool>& used) {
  std::vector<Run> found;
  for (const auto& bucket : plan_.buckets()) {
    for (const auto& slot : bucket.slots) {
      if (!used[slot.parameter]) continue;
      const Run run{table_[slot.parameter].group, ++steps_[slot.parameter],
                    bucket.offset + slot.offset, bucket.offset + slot.offset + slot.shard_numel};
      if (!found.empty() && found.back().end == run.begin && found.back().group == run.group &&
          found.back().step == run.step) {
        found.back().end = run.end;
      } else {
        found.push_back(run);
      }
    }
  }
  return found;
}

at::Tensor ShardedState::copied_here(const at::Tensor& gradient) const {
  const bool pin = options_.pin_memory && gradient.is_cuda() && masters_.is_cpu();
  const auto place = gradient.options().device(masters_.device());
  auto here = at::empty(gradient.sizes(), place.pinned_memory(pin));
  here.copy_(gradient);  // returns when it has arrived
  return here;
}

void ShardedState::update(const at::Tensor& gradient, const std::vector<bool>& used) {
  EQUIGRAD_CHECK(gradient.dim() == 1 && gradient.numel() == plan_.shard_numel(), "optimizer.update",
                 "the gradient is flat over the shard space");
  EQUIGRAD_CHECK(used.size() == table_.size(), "optimizer.update",
                 "every parameter was used or was not");
  const bool elsewhere = gradient.device() != masters_.device();
  const auto here = elsewhere ? copied_here(gradient) : gradient;
  const memory::Charge charge(ledger_, memory::Category::Gradients,
                              elsewhere ? static_cast<int64_t>(here.nbytes()) : 0);
  if (client_) return client_->update(here, used);
  for (const auto& run : runs(used)) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, run.begin, run.end - run.begin);
    };
    std::vector<at::Tensor> states;
    for (const auto& state : states_) states.push_back(part(state));
    update_(config_by_group_[run.group], run.step, part(masters_), part(here), states);
  }
}

}  // namespace equigrad::optimizer
