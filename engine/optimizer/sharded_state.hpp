// Sharded state: the master weights and optimizer state of this rank's shards, and their update.
//
// Invariants: a parameter that no rank used in the window keeps every bit, its step count included,
// as torch leaves a parameter whose grad is None; each parameter counts its own steps; groups
// override lr and weight_decay. Neighbouring slots with the same hyper-parameters and count are
// updated as one flat run, which changes no bit.
// With an optimizer of the user's (client_state.hpp) masters are here, and the rest is its own.
// Offloaded state lies on the CPU and is updated there, with a copy of the device's gradient that
// lives as long as the update.
// Shapes: every tensor is flat over the shard space, [plan.shard_numel()]; masters, states and
// gradient are fp32, bf16 or fp16, each in its own type (optimizer/update_rule.hpp).
// Errors: equigrad::Error for another dtype.
// Depends on: layout, config, memory/ledger, optimizer/update_rule, optimizer/client_state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/memory/ledger.hpp"
#include "engine/optimizer/client_state.hpp"

namespace equigrad::optimizer {

// What a parameter group sets differently.
struct GroupOverride {
  std::optional<double> lr;
  std::optional<double> weight_decay;
};

// What the state is stored in, and where.
struct StateOptions {
  at::ScalarType master = at::kFloat;
  at::ScalarType state = at::kFloat;
  at::Device device = at::kCPU;
  // On the CPU beside a CUDA device: masters and the gradient's copy lie in locked pages, which the
  // device reads and writes itself. Without a CUDA device there is nothing to lock them for.
  bool pin_memory = false;
};

// The configuration of each parameter group.
std::vector<OptimizerConfig> by_group(const OptimizerConfig& config,
                                      const std::vector<GroupOverride>& groups);

class ShardedState {
 public:
  // At least one group.
  ShardedState(std::vector<OptimizerConfig> config_by_group, const layout::ParameterTable& table,
               const layout::BucketPlan& plan, const StateOptions& options, memory::Ledger& ledger);
  ShardedState(const Client& client, const layout::ParameterTable& table,
               const layout::BucketPlan& plan, const StateOptions& options, memory::Ledger& ledger);

  const at::Tensor& masters() const { return masters_; }
  const std::vector<at::Tensor>& states() const { return states_; }  // of no client
  std::vector<std::string> state_names(std::size_t parameter) const;
  // In the order of state_names(): a view of this rank's slice, padding included, if there is any.
  at::Tensor state(std::size_t parameter, std::size_t index) const;
  // By parameter: the updates it has had.
  const std::vector<int64_t>& steps() const { return steps_; }
  std::vector<int64_t>& steps() { return steps_; }
  std::vector<double> lr() const;  // by group
  // By group; empty with a client. Of what is written state_names() must be what it was.
  std::vector<OptimizerConfig>& hyper_parameters() { return config_by_group_; }
  // By group; beta1 may be empty: as it is.
  void set_rates(const std::vector<double>& lr, const std::vector<double>& beta1);
  // A state of this parameter was written from outside: it counts, also before the first update.
  void keep_state(std::size_t parameter);

  // One step with an averaged, clipped gradient, which is used up; it may lie on another device.
  // used[i] tells whether any rank used parameter i.
  void update(const at::Tensor& gradient, const std::vector<bool>& used);

 private:
  // Null without one.
  friend ClientState* client_of(ShardedState& state) {
    return state.client_ ? &*state.client_ : nullptr;
  }

  struct Run {
    std::size_t group;
    int64_t step;
    int64_t begin;
    int64_t end;
  };
  std::vector<Run> runs(const std::vector<bool>& used);
  at::Tensor copied_here(const at::Tensor& gradient) const;
  void make_masters();

  std::vector<OptimizerConfig> config_by_group_;
  const layout::ParameterTable& table_;
  const layout::BucketPlan& plan_;
  memory::Ledger& ledger_;
  StateOptions options_;
  at::Tensor masters_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> states_;
  std::vector<int64_t> steps_;  // by parameter
  std::optional<ClientState> client_;
};

}  // namespace equigrad::optimizer
