// RankCase: one case on one rank: a fresh model and engine, three optimizer steps, everything
// this rank holds compared with the twin.
//
// Exact lane: losses, loss scale, skipped steps, gradient norm, gradient shards, master weights and
// states of this rank, and every whole parameter, at every step. Bounded lane: the gradient of the
// first step that is applied against the higher-precision run, the update of every step from its
// actual inputs.
//
// Invariants: nothing outlives run() but the answer and, after a failure, files.
// Shapes: shards are flat.   Units: steps and micro-batches count from 0 here, from 1 in messages.
// Errors: whatever the engine or the reference throw; differences are findings, not errors.
// Depends on: engine.hpp, reference, oracle, faults, verdict/divergence.hpp, recipe.hpp, twin.hpp.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "conformance/cases/overflowing_model.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/diagnosis/diagnosis.hpp"
#include "conformance/diagnosis/first_difference.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/oracle/other_rules.hpp"
#include "conformance/oracle/update_bound.hpp"
#include "conformance/ranks/rank_context.hpp"
#include "conformance/verdict/divergence.hpp"
#include "conformance/verdict/lane_tally.hpp"
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
  void observe(int step, const std::vector<LocalShard>& shards);
  std::optional<Failure> check_gradient(int step, const LocalShard& shard);
  void bound_gradient(int step, const LocalShard& shard, const std::string& where);
  void check_scale(int step, const std::string& what);
  void check_boundary(int step);
  void after_step(int step);
  void check_shard(int step, const LocalShard& shard);
  void note_update(int step, const LocalShard& shard);
  void check_update(int step, const LocalShard& shard);
  void check_parameters(int step);
  bool compare(const Site& site, const at::Tensor& got, at::Tensor want);
  // As compare(), and where it fails engine and twin may diverge.
  bool check(const Site& site, const at::Tensor& got, at::Tensor want);
  void finding(const Site& site, const std::string& what);
  void note_divergence(const Site& site, const at::Tensor& got, const at::Tensor& want);
  void note_gradients(int step, const std::vector<Failure>& seen, bool norm_held);
  void find_positions();
  oracle::UpdateSpec update_spec(const std::string& name) const;
  void explain(nlohmann::json& answer);
  void digest(int step, const std::string& what, const LocalShard& shard, const at::Tensor& values);
  nlohmann::json gradient_rows() const;
  std::string acts_so_far() const;
  void see_with_other_rules(const std::string& where, const at::Tensor& got,
                            const at::Tensor& want);

  CaseSpec spec_;
  uint64_t seed_;
  std::string keep_;
  int steps_;
  ranks::RankContext& context_;
  const reference::Data& data_;
  Twin twin_;
  std::shared_ptr<OverflowingModel> model_;
  std::shared_ptr<faults::Moment> moment_;
  std::unique_ptr<faults::Planted> fault_;  // null: none
  oracle::OtherRules other_rules_;          // of what differs while a fault is planted
  std::unique_ptr<Engine> engine_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, reference::OptimizerSpec> rules_;  // by parameter, its group's settings
  std::map<std::string, at::ScalarType> communication_dtypes_;  // of safe modules, under autocast
  std::map<std::string, int64_t> updates_;
  int64_t skipped_ = 0;
  std::map<std::string, LocalShard> before_;  // copies, as the update found them
  struct GradientResult {
    bool held = true;
    double margin = 0;  // of the reduction's bound, in the first step applied
  };
  std::vector<std::map<std::string, GradientResult>> gradients_;  // by step, then name
  Divergences divergences_;
  std::vector<Failure> failures_;                  // those at the divergences
  double norm_ = 0;                                // of the last step that showed it
  double failed_norm_ = 0;                         // of the step of the failures
  std::map<std::string, UpdateSeen> update_seen_;  // of failures
  std::map<std::string, Position> positions_;      // by parameter
  LaneTally exact_, bounded_;
  FirstDifference first_;
  std::map<std::string, int64_t> compared_;  // elements by kind: loss, gradient, master, ...
  uint64_t digest_ = 0;
  int64_t digested_ = 0;
};

// A case whose precision is not defined at its stage: passes if initialize() throws the ConfigError
// that names it.
nlohmann::json run_refused(const nlohmann::json& request, ranks::RankContext& context);

// "step 1 gradient"
std::string at_step(int step, const std::string& what);

}  // namespace equigrad::conformance
