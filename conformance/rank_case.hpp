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
// Depends on: engine.hpp, reference, oracle, faults, recipe.hpp, twin.hpp.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/faults/fault.hpp"
#include "conformance/lane_tally.hpp"
#include "conformance/loud_model.hpp"
#include "conformance/oracle/other_rules.hpp"
#include "conformance/oracle/update_bound.hpp"
#include "conformance/ranks/rank_context.hpp"
#include "conformance/twin.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance {

// The first gradient that differed.
struct GradientFailure {
  int step = 0;
  std::string name;
  int64_t begin = 0;
  at::Tensor got, want;
};

class RankCase {
 public:
  // request: id, seed, twin (path); optional fault (name), adversary (seed), keep (folder for
  // tensors) and knobs (merged into the engine's configuration, and no part of the case).
  RankCase(const nlohmann::json& request, ranks::RankContext& context, const reference::Data& data);
  nlohmann::json run();

 private:
  void make_engine(const nlohmann::json& request);
  void play(int step);
  void micro_batch(int step, int index);
  void observe(int step, const std::vector<LocalShard>& shards);
  void check_gradient(int step, const LocalShard& shard);
  void bound_gradient(int step, const LocalShard& shard, const std::string& where);
  void check_scale(int step, const std::string& what);
  void check_boundary(int step);
  void after_step(int step);
  void check_shard(int step, const LocalShard& shard);
  void check_update(int step, const LocalShard& shard);
  void check_parameters(int step);
  bool compare(const std::string& where, int64_t begin, const at::Tensor& got, at::Tensor want);
  void digest(int step, const std::string& what, const LocalShard& shard, const at::Tensor& values);
  nlohmann::json gradient_rows() const;
  std::string acts_so_far() const;
  void see_with_other_rules(const std::string& where, const at::Tensor& got,
                            const at::Tensor& want);

  CaseSpec spec_;
  uint64_t seed_;
  std::string keep_;
  ranks::RankContext& context_;
  const reference::Data& data_;
  Twin twin_;
  std::shared_ptr<LoudModel> model_;
  std::shared_ptr<faults::Moment> moment_;
  std::unique_ptr<faults::Planted> fault_;  // null: none
  oracle::OtherRules other_rules_;          // of what differs while a fault is planted
  std::unique_ptr<Engine> engine_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, reference::OptimizerSpec> rules_;  // by parameter, its group's settings
  std::map<std::string, at::ScalarType> travels_in_;       // of safe modules, under autocast
  std::map<std::string, int64_t> updates_;
  int64_t skipped_ = 0;
  std::map<std::string, LocalShard> before_;  // copies, as the update found them
  struct GradientResult {
    bool held = true;
    double margin = 0;  // of the reduction's bound, in the first step applied
  };
  std::vector<std::map<std::string, GradientResult>> gradients_;  // by step, then name
  std::vector<GradientFailure> failures_;                         // at most one
  LaneTally exact_, bounded_;
  std::map<std::string, int64_t> compared_;  // elements by kind: loss, gradient, master, ...
  uint64_t digest_ = 0;
  int64_t digested_ = 0;
};

// A case whose precision is not defined at its stage: passes if initialize() throws the ConfigError
// that names it.
nlohmann::json run_refused(const nlohmann::json& request, ranks::RankContext& context);

// "step 1 gradient"
std::string at_step(int step, const std::string& what);

// What the first wrong gradient looks like, for people; keeps its tensors in `keep` if not empty.
struct Diagnosis {
  std::string text;
  std::vector<std::string> files;  // names inside `keep`
};
Diagnosis diagnose(const CaseSpec& spec, uint64_t seed, const reference::Data& data,
                   const Twin& twin, const GradientFailure& failure,
                   const std::vector<int64_t>& shape, const std::string& keep, int rank);

}  // namespace equigrad::conformance
