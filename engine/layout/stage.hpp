// Stage: the four ZeRO stages as one table, read like Figure 1 of the paper.
//
//            optimizer state   gradients    parameters   gradients are reduced
//   stage 0  replicated        replicated   replicated   at the boundary
//   stage 1  sharded           replicated   replicated   at the boundary
//   stage 2  sharded           sharded      replicated   after every backward pass
//   stage 3  sharded           sharded      sharded      after every backward pass
//
// A window's only pass begins the reduction of stages 0, 1 while it runs (window.hpp).
//
// Invariants: what a stage shards, every later stage shards too.
// Errors: equigrad::Error for a stage outside 0-3.
// Depends on: engine/error.hpp.
// Paper: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "engine/error.hpp"

namespace equigrad {

enum class ReduceWhen { Boundary, EveryPass };

struct Stage {
  bool optimizer_state_sharded;
  bool gradients_sharded;
  bool parameters_sharded;
  ReduceWhen gradients_reduced;

  // Into how many equal slices every parameter is cut.
  constexpr int shards(int world_size) const { return optimizer_state_sharded ? world_size : 1; }
  // Whether buckets leave when they are full; `eager` is EngineConfig::reduces_eagerly().
  constexpr bool sends_full_buckets(bool eager) const {
    return eager || gradients_reduced == ReduceWhen::EveryPass;
  }
};

inline constexpr std::array<Stage, 4> kStages{{
    {false, false, false, ReduceWhen::Boundary},
    {true, false, false, ReduceWhen::Boundary},
    {true, true, false, ReduceWhen::EveryPass},
    {true, true, true, ReduceWhen::EveryPass},
}};
static_assert([] {
  for (std::size_t i = 1; i < kStages.size(); ++i) {
    const Stage &before = kStages[i - 1], &stage = kStages[i];
    if (before.optimizer_state_sharded && !stage.optimizer_state_sharded) return false;
    if (before.gradients_sharded && !stage.gradients_sharded) return false;
    if (before.parameters_sharded && !stage.parameters_sharded) return false;
  }
  return true;
}());

inline const Stage& stage_row(int stage) {
  if (stage < 0 || stage > 3)
    throw Error("stage_row", "expected a ZeRO stage 0-3, got " + std::to_string(stage) +
                                 ". Use 0 for plain data parallelism.");
  return kStages[static_cast<std::size_t>(stage)];
}

}  // namespace equigrad
