// RankCase: one case on one rank: a fresh model and engine, three optimizer steps, everything
// this rank holds compared with the twin (comparison.hpp), and where they part
// (placed_failures.hpp).
//
// Invariants: nothing outlives run() but the answer and, after a failure, files.
// Shapes: shards are flat.   Units: steps and micro-batches count from 0 here, from 1 in messages.
// Errors: whatever the engine or the reference throw; differences are findings, not errors.
// Depends on: comparison.hpp, faults/fault.hpp, engine/engine.hpp.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "conformance/faults/fault.hpp"
#include "conformance/on_rank/comparison.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance {

class RankCase {
 public:
  // request: id, seed, twin (path); optional fault (name), adversary (seed, 0: a plain
  // communicator; without it the style tensor_backward has one), keep (folder for tensors), config
  // (path for what initialize() gets), steps (1 to kSteps) and knobs (merged into the engine's
  // configuration, and no part of the case).
  RankCase(const nlohmann::json& request, ranks::RankContext& context, const reference::Data& data);
  nlohmann::json run();

 private:
  void make_engine(const nlohmann::json& request);
  void play(int step);
  void micro_batch(int step, int index);
  std::string acts_so_far() const;
  nlohmann::json answer();

  std::shared_ptr<OverflowingModel> model_;
  CaseFacts facts_;
  int steps_;
  std::shared_ptr<faults::Moment> moment_;
  std::unique_ptr<faults::Planted> fault_;  // null: none
  std::unique_ptr<Engine> engine_;
  Lanes lanes_;
  std::optional<PlacedFailures> failures_;
  std::optional<TwinComparison> comparison_;
};

// A case whose precision is not defined at its stage: passes if initialize() throws the ConfigError
// that names it.
nlohmann::json run_refused(const nlohmann::json& request, ranks::RankContext& context);

}  // namespace equigrad::conformance
