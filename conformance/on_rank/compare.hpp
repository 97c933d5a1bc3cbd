// CompareRank: `equigrad compare`, one rank's side: an engine that trains, and nothing beside it.
//
//   verb "start"   model and engine -> {"parameters", "tokens"}
//   verb "steps"   "count" optimizer steps -> {"losses", "seconds"}, one of each a step
//   verb "finish"  -> {"held", "held_bytes", "held_peak_bytes", "process_peak_bytes",
//                      "process_growth_bytes", "skipped_steps"}
//
// The forward runs under the engine's autocast guard, which does nothing unless the configuration
// asks for it.
//
// Invariants: weights and batches depend on the seed only, not on the configuration, so that equal
// seeds make pairs. The process's peak is that of its life: a process serves one "start", or
// "finish" is of all of them.
// Units: losses in nats, the mean of the step's micro-batches on this rank; seconds of forward,
// backward and step; tokens are bytes of text of all ranks; growth is the peak less that before
// the model was made.
// Errors: equigrad::Error for verbs out of order.
// Depends on: engine.hpp, reference (sources only).
#pragma once

#include <nlohmann/json.hpp>

#include "conformance/ranks/rank_context.hpp"

namespace equigrad::reference {
class Data;
}

namespace equigrad::conformance {

nlohmann::json serve_compare(const nlohmann::json& request, ranks::RankContext& context,
                             const reference::Data& data);

}  // namespace equigrad::conformance
