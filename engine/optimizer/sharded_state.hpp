// Sharded state: the fp32 master weights and optimizer state of this rank's shards, and their
// update.
//
// Invariants: a parameter that no rank used in the window keeps every bit, its step count included,
// as torch leaves a parameter whose grad is None; each parameter counts its own steps; groups
// override lr and weight_decay. Neighbouring slots with the same hyper-parameters and count are
// updated as one flat run, which changes no bit.
// Shapes: every tensor is fp32, flat over the shard space, [plan.shard_numel()].
// Errors: none.
// Depends on: layout, config, trace/ledger, optimizer/update_rule.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/trace/ledger.hpp"

namespace equigrad::optimizer {

// What a parameter group sets differently.
struct GroupOverride {
  std::optional<double> lr;
  std::optional<double> weight_decay;
};

class ShardedState {
 public:
  ShardedState(const OptimizerConfig& config, const std::vector<GroupOverride>& groups,
               const layout::ParameterTable& table, const layout::BucketPlan& plan,
               at::Device device, trace::Ledger& ledger);

  const at::Tensor& masters() const { return masters_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& states() const { return states_; }  // in the order of names()
  int64_t steps_of(std::size_t parameter) const { return steps_[parameter]; }
  std::vector<double> lr() const;  // by group
  // By group; beta1 may be empty: as it is.
  void set_rates(const std::vector<double>& lr, const std::vector<double>& beta1);
  // A state of this parameter was written from outside: it counts, also before the first update.
  void keep_state(std::size_t parameter);

  // One step with an averaged, clipped gradient, which is used up. used[i] tells whether any rank
  // used parameter i.
  void update(const at::Tensor& gradient, const std::vector<bool>& used);

 private:
  struct Run {
    std::size_t group;
    int64_t step;
    int64_t begin;
    int64_t end;
  };
  std::vector<Run> runs(const std::vector<bool>& used);

  std::vector<OptimizerConfig> config_by_group_;
  const layout::ParameterTable& table_;
  const layout::BucketPlan& plan_;
  at::Tensor masters_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> states_;
  std::vector<int64_t> steps_;  // by parameter
};

}  // namespace equigrad::optimizer
