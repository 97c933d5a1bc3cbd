// Tensor access: engine/api/access.hpp on the engine's own stations.
//
// Invariants: every collective call first meets the other ranks' (agreement/coordinator.hpp), with
// what is asked and, in a full setter, a digest of the value; so it happens on all ranks or on
// none.
// Shapes, errors: those of engine/api/access.hpp.
// Depends on: comm, window, layout, optimizer/sharded_state, parameter.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/coordinator.hpp"
#include "engine/api/access.hpp"
#include "engine/api/engine_types.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/gradient/window.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/partition.hpp"
#include "engine/optimizer/sharded_state.hpp"
#include "engine/parameter/store.hpp"

namespace equigrad {

// All of it outlives the access.
struct Stations {
  const layout::ParameterTable& table;
  const layout::BucketPlan& plan;
  comm::Communicator& communicator;
  agreement::Participant& participant;
  gradient::Window& window;
  optimizer::ShardedState& optimizer;
  parameter::Parameters& parameters;
  std::function<double()> factor;  // what a sum is averaged with
};

class TensorAccess final : public Access {
 public:
  explicit TensorAccess(Stations stations) : at_(std::move(stations)) {}

  at::Tensor full_gradient(const std::string& name) override;
  at::Tensor full_master(const std::string& name) override;
  at::Tensor full_optimizer_state(const std::string& name, const std::string& state) override;
  void set_full_gradient(const std::string& name, const at::Tensor& value) override;
  void set_full_master(const std::string& name, const at::Tensor& value) override;
  void set_full_optimizer_state(const std::string& name, const std::string& state,
                                const at::Tensor& value) override;
  at::Tensor local_gradient(const std::string& name) override;
  at::Tensor local_master(const std::string& name) override;
  at::Tensor local_optimizer_state(const std::string& name, const std::string& state) override;
  void set_local_gradient(const std::string& name, const at::Tensor& value) override;
  void set_local_master(const std::string& name, const at::Tensor& value) override;
  void set_local_optimizer_state(const std::string& name, const std::string& state,
                                 const at::Tensor& value) override;

  // What this rank owns of every trainable parameter: views. `gradient` flat over the shard space,
  // or undefined.
  std::vector<LocalShard> shards(const at::Tensor& gradient, const std::vector<bool>& used) const;

 private:
  std::size_t trainable(const std::string& name) const;
  std::size_t state_index(const std::string& name, const std::string& state) const;
  layout::Range mine(std::size_t parameter) const;
  bool slices_differ() const { return at_.plan.shards() > 1; }  // else every rank's is the whole
  at::Tensor slice_of(const at::Tensor& flat, std::size_t parameter) const;
  at::Tensor averaged(std::size_t parameter);
  at::Tensor gather(const at::Tensor& slice, std::size_t parameter);
  at::Tensor slice_of_full(std::size_t parameter, const at::Tensor& value) const;
  at::Tensor slice_of_local(std::size_t parameter, const at::Tensor& value) const;
  bool meet(const agreement::SyncPoint& point, std::size_t parameter);
  void write_master(std::size_t parameter, const at::Tensor& slice);
  void write_state(std::size_t parameter, std::size_t state, const at::Tensor& slice);

  Stations at_;
};

}  // namespace equigrad
