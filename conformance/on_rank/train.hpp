// TrainRank: `equigrad train`, one rank's side: the engine on some ranks, the twin on another.
//
//   part "engine", verb "start"    model and engine             part "twin", verb "start"
//                  verb "step"     one optimizer step                        verb "step" -> a file
//                  verb "compare"  everything held, with the twin's file
//
// The engine always reads "config". The twin follows "options" (stage, dtype, accumulate,
// micro_batch, lr), written separately, so that a key which the engine misreads is seen; without
// them, for a user's own file, it follows what the engine's parser made of "config".
//
// Invariants: model and engine live from "start" to the next "start"; steps are asked for in order.
// Units: losses in nats; tokens are bytes of text.
// Errors: equigrad::Error for verbs out of order.
// Depends on: engine.hpp, reference, oracle, twin.hpp (sources only).
#pragma once

#include <nlohmann/json.hpp>

#include "conformance/ranks/rank_context.hpp"

namespace equigrad::reference {
class Data;
}

namespace equigrad::conformance {

nlohmann::json serve_train(const nlohmann::json& request, ranks::RankContext& context,
                           const reference::Data& data);

}  // namespace equigrad::conformance
