// RankCase: one case on one rank: a fresh model and engine, three optimizer steps, everything
// this rank holds compared with the twin (comparison.hpp), and where they part
// (placed_failures.hpp); beside it what the engine says of itself (getters.hpp), what it holds at
// rest (rest_ledger.hpp) and how it leaves its caller (caller_state.hpp).
//
// Invariants: nothing outlives run() but the answer and, after a failure, files.
// Shapes: shards are flat.   Units: steps and micro-batches count from 0 here, from 1 in messages.
// Errors: whatever the engine or the reference throw; differences are findings, not errors.
// Depends on: caller_state.hpp, comparison.hpp, getters.hpp, rank_model.hpp, rest_ledger.hpp,
// faults/fault.hpp, engine/engine.hpp.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "conformance/cases/recipe.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/on_rank/caller_state.hpp"
#include "conformance/on_rank/comparison.hpp"
#include "conformance/on_rank/getters.hpp"
#include "conformance/on_rank/rank_model.hpp"
#include "conformance/on_rank/rest_ledger.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance {

// How a case is run, beside its facts.
struct RankCaseOptions {
  std::string config;      // what initialize() gets
  std::string style;       // the word of the call style, for notes
  std::string fault = {};  // planted; empty: none
  uint64_t adversary = 0;  // the seed of a communicator that delays; 0: a plain one
  int steps = kSteps;
  ExpectedRates rates = {};        // of a scheduler; none: those of the recipe, in every step
  int gradient_step = kSteps - 1;  // in which getters read a gradient
  int resumed_before = -1;         // this step the engine is saved, and loaded by a new one
};

class RankCase {
 public:
  RankCase(CaseFacts facts, std::unique_ptr<RankModel> model, RankCaseOptions options);
  RankCase(const RankCase&) = delete;
  RankCase& operator=(const RankCase&) = delete;
  nlohmann::json run();

 private:
  // What is judged beside the numbers.
  struct Beside {
    CallerState before;  // the case
    CallerWatch caller;
    std::optional<GetterJudge> getters = {};
    std::optional<RestLedger> rest = {};
  };
  void make_engine();
  void resume(int step);
  void play(int step);
  void micro_batch(int step, int index);
  void take_pass(int step, int index);
  void take_step(int step, int index);
  void end_engine();
  std::string acts_so_far() const;
  nlohmann::json answer();

  CaseFacts facts_;
  std::unique_ptr<RankModel> model_;
  RankCaseOptions options_;
  std::shared_ptr<faults::Moment> moment_;
  std::unique_ptr<faults::Planted> fault_;  // null: none
  comm::Mesh ranks_;
  std::unique_ptr<Engine> engine_;
  Lanes lanes_;
  Beside beside_{.before = {}, .caller = CallerWatch(lanes_.exact)};
  std::optional<PlacedFailures> failures_;
  std::optional<TwinComparison> comparison_;
};

// A case of the matrix.
//
// request: id, seed, twin (path); optional fault (name), adversary (seed, 0: a plain communicator;
// without it the style tensor_backward has one), keep (folder for tensors), config (path for what
// initialize() gets), steps (1 to kSteps) and knobs (merged into the engine's configuration, and no
// part of the case).
nlohmann::json run_case(const nlohmann::json& request, ranks::RankContext& context,
                        const reference::Data& data);
// A case whose precision is not defined at its stage: passes if initialize() throws the ConfigError
// that names it.
nlohmann::json run_refused(const nlohmann::json& request, ranks::RankContext& context);
// Writes `config` where the request's "config" says, for the folder of a failure.
void keep_config(const nlohmann::json& request, const ranks::RankContext& context,
                 const std::string& config);

}  // namespace equigrad::conformance
