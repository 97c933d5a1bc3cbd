// PlacedFailures: where engine and twin part on this rank, and the tensors of the place that comes
// first in the order of the run, which is the one that is explained.
//
// Invariants: failures that are kept are all of one phase of one step: the first of the
// divergences.
// Shapes: those of what was compared.   Units: steps and micro-batches count from 0.
// Errors: those of diagnose.
// Depends on: case_facts.hpp, diagnosis/diagnosis.hpp, verdict/divergence.hpp,
// engine/layout/parameter_table.hpp.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "conformance/diagnosis/diagnosis.hpp"
#include "conformance/on_rank/case_facts.hpp"
#include "conformance/verdict/divergence.hpp"
#include "engine/layout/parameter_table.hpp"

namespace equigrad::conformance {

// The parameters of one group, in order of registration; a tied one under its first name.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
// As the engine registers them, group by group.
std::vector<layout::Registration> registrations_of(const CaseFacts& facts,
                                                   const std::vector<NamedTensors>& groups);
// Group by group in the engine's order, with the buckets of its plan.
std::map<std::string, Position> positions_of(const CaseFacts& facts,
                                             const std::vector<NamedTensors>& groups,
                                             int64_t reduce_bucket_size);

class PlacedFailures {
 public:
  PlacedFailures(const CaseFacts& facts, std::map<std::string, Position> positions)
      : facts_(facts), positions_(std::move(positions)) {}

  // The norm that the engine showed last.
  void set_norm(double norm) { norm_ = norm; }
  // `got` and `want` are undefined where nothing was compared.
  void note(const Site& site, const at::Tensor& got, const at::Tensor& want);
  // `seen`: all gradients of a step, right ones too.
  void note_gradients(int step, const std::vector<Failure>& seen, bool norm_held);
  // Whether an update of this step is what is explained; and what it began with.
  bool wants_update(int step) const;
  void note_update(const std::string& parameter, UpdateSeen seen);

  bool empty() const { return divergences_.all().empty(); }
  // Whether there are tensors to explain.
  bool has_tensors() const { return !failures_.empty(); }
  // Adds the divergences to a rank's answer, and the words and files of the explanation if there is
  // one. `rules`: of every parameter, after the last update.
  void explain(std::map<std::string, oracle::UpdateSpec> rules, nlohmann::json& answer);

 private:
  std::vector<Failure> drawn() const;

  const CaseFacts& facts_;
  std::map<std::string, Position> positions_;
  Divergences divergences_;
  std::vector<Failure> failures_;
  double norm_ = 0;
  double failed_norm_ = 0;  // of the step of the failures
  std::map<std::string, UpdateSeen> update_seen_;
};

}  // namespace equigrad::conformance
