// Tensor access: the stations that engine/api/access.hpp reads and writes.
//
// Invariants: every collective call first meets the other ranks' (agreement/coordinator.hpp), with
// what is asked and, in a full setter, a digest of the value; so it happens on all ranks or on
// none.
// Shapes, errors: those of engine/api/access.hpp.
// Depends on: comm, window, layout, optimizer/sharded_state, parameter.
#pragma once

#include <functional>
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

// All of it outlives what looks at it.
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

// What this rank owns of every trainable parameter: views. `gradient` flat over the shard space, or
// undefined.
std::vector<LocalShard> local_shards(const Stations& at, const at::Tensor& gradient,
                                     const std::vector<bool>& used);

}  // namespace equigrad
