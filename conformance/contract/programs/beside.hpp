// Beside: what a program needs for an engine that it makes itself, beside the player's.
//
// Invariants: such an engine is judged by what is known without the reference, which has none; the
// player's engine is trained meanwhile, and compared as ever.
// Units: accumulation counts passes.   Errors: those of initialize, where it is called.
// Depends on: play.hpp.
#pragma once

#include <cstdint>
#include <string>

#include "conformance/contract/players/play.hpp"

namespace equigrad::conformance::contract {

// At the program's stage, one sample a rank and pass, a rate of 1: a step of SGD takes the average
// itself away from a master.
struct Beside {
  int64_t accumulation = 1;
  std::string optimizer = "SGD";
  std::string zero = {};  // more of zero_optimization: R"(, "reduce_bucket_size": 40)"
  std::string keys = {};  // more of the text: R"(, "reduction": "exact")"
};
std::string config_beside(const Play& play, const Beside& beside = {});

// The path of a file of this process, which the program removes.
std::string file_beside(const Play& play, const std::string& name);

// A window of the player's own model, as plain as any.
void train_along(Play& play);

// A case that checks something beside while the tower is trained along, one window in fp32.
Case case_beside(Case of, Plays plays = Plays::EveryStage);

}  // namespace equigrad::conformance::contract
