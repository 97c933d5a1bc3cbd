// TwinComparison: everything this rank holds, compared with the twin at every point of a case, and
// with the bounds.
//
// Invariants: a difference is a finding, not an error; where engine and twin may part it is placed.
// Shapes: shards are flat.   Units: steps and micro-batches count from 0.
// Errors: c10::Error for a twin without the runs that a bound needs.
// Depends on: case_facts.hpp, lanes.hpp, placed_failures.hpp, engine/engine.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "conformance/on_rank/case_facts.hpp"
#include "conformance/on_rank/lanes.hpp"
#include "conformance/on_rank/placed_failures.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance {

class TwinComparison {
 public:
  TwinComparison(const CaseFacts& facts, const std::unique_ptr<Engine>& engine, int steps,
                 Lanes& lanes, PlacedFailures& failures)
      : facts_(facts),
        engine_(engine),
        lanes_(lanes),
        failures_(failures),
        gradients_(static_cast<std::size_t>(steps)) {}

  // Compares, and a difference is placed; whether it held.
  bool check(const Site& site, const at::Tensor& of_engine, const at::Tensor& want);
  void finding(const Site& site, const std::string& what);
  void check_scale(int step, const std::string& what);
  // Gradients, as on_step shows them.
  void observe(int step, const std::vector<LocalShard>& shards);
  // Boundary, masters, states, updates and parameters.
  void after_step(int step);
  // What this rank's buffers hold after a step.
  void check_buffers(int step, const reference::TensorMap& buffers);

  std::map<std::string, oracle::UpdateSpec> update_specs() const;
  // Adds digest, digested and gradients to a rank's answer, and what was not compared.
  void add_to(nlohmann::json& answer) const;

 private:
  struct GradientResult {
    bool held = true;
    double margin = 0;  // of the reduction's bound, in the first step applied
  };
  struct Digest {
    uint64_t sum = 0;
    int64_t numel = 0;
  };
  std::optional<Failure> check_gradient(int step, const LocalShard& shard);
  void bound_gradient(int step, const LocalShard& shard, const std::string& where);
  oracle::Reduction reduction_of(int step, const LocalShard& shard) const;
  void check_boundary(int step);
  void check_shard(int step, const LocalShard& shard);
  void note_update(int step, const LocalShard& shard);
  void check_update(int step, const LocalShard& shard);
  void check_parameters(int step);
  void digest(const Site& site, const at::Tensor& values);
  oracle::UpdateSpec update_of(const std::string& name, int step) const;

  const CaseFacts& facts_;
  const std::unique_ptr<Engine>& engine_;  // which may be made anew
  Lanes& lanes_;
  PlacedFailures& failures_;
  std::vector<std::map<std::string, GradientResult>> gradients_;  // by step, then name
  std::map<std::string, LocalShard> before_;  // copies, as the update found them
  std::map<std::string, int64_t> updates_;
  int64_t skipped_ = 0;
  Digest digest_;
};

}  // namespace equigrad::conformance
