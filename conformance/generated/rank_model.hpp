// GeneratedRankModel: a workload's model as one rank of an engine trains it: every pass in a call
// style of its own, and before it what must change nothing (harmless_events.hpp).
//
// Invariants: styles and events depend on the execution alone, and are the same on every rank.
// Shapes: those of the workload.   Units: steps and micro-batches count from 0.
// Errors: whatever the engine throws; RefusalMissing as on_rank/backward.hpp has it;
// HarmlessEventFailed where an event did not do what it should.
// Depends on: generated/model.hpp, on_rank/rank_model.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/generated/model.hpp"
#include "conformance/on_rank/rank_model.hpp"

namespace equigrad::conformance {

struct PassTypes {
  at::ScalarType dtype = at::kFloat;                // of coefficients
  bool is_scaled = false;                           // the precision scales the loss
  std::shared_ptr<std::vector<double>> rates = {};  // gets what set_lr() was called with, by group
};

std::unique_ptr<RankModel> generated_rank_model(const GeneratedCase& one, const PassTypes& types);

}  // namespace equigrad::conformance
