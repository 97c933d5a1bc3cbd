// RankProgram: what a rank is asked to do by a campaign of losses: JSON in, JSON out.
//
//   save    trains `steps` steps, saves, and trains one more; with a log: all that was done to the
//           disk; with a carelessness; with an interruption: an error, or the end of ranks
//   check   for each folder: an engine of other weights loads it, and trains one step
//   refuse  for each folder: loads what is there, trains one step, is refused an operation of the
//           save, and trains another step all the same
//
// Invariants: a request is one for all ranks of its set; what is said of a folder does not depend
// on the folders before it.
// Units: operations count from 0.
// Errors: those of the engine, but where the answer has them.
// Depends on: training, crash/disk.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "conformance/ranks/rank_context.hpp"

namespace equigrad::conformance::crash {

nlohmann::json serve(const nlohmann::json& request, ranks::RankContext& context);

// What a rank notes as its last.
inline constexpr const char* kKillsItself = "kill -9 of itself";

// The file that a rank's log is in.
std::string log_file(const std::string& prefix, int rank);

}  // namespace equigrad::conformance::crash
