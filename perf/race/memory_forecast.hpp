// Memory forecast: the highest moment of a rank, before the engine runs, for any stage: what it
// holds between steps, the blocks that reductions receive into, and, from moment to moment of a
// step of plain LibTorch on one rank, what operators have (activations, temporaries), what the
// buckets and the window have by then (memory/forecast.hpp), and which parameters are whole.
//
// A moment begins when an operator is about to read parameters, or when a gradient is there, so
// what goes in one of them is counted to its end: the forecast is a bound.
//
// Invariants: up to two ranks; of more the blocks for rows that are not sent as they lie, and for
// the second half of an all-reduce, is not in it. Pages come all at once and go after their last
// use where the limits of stage 3 let them; else they count as whole all the time.
// Units: bytes of a rank; accumulation 1, fp32, in the pinned order.
// Errors: those of memory/forecast.hpp.   Depends on: memory/forecast.hpp, comm/reduction, layout,
// stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/config.hpp"

namespace equigrad::perf {

struct Moment {
  std::string begins;  // "between", "forward", "backward", "use", "gradient", "step"
  std::vector<std::size_t> parameters;         // of one operator's use, or of a gradient
  int64_t start_bytes = 0;                     // live when it begins
  int64_t live_bytes = 0;                      // at most
  int64_t gradient_bytes = 0, held_bytes = 0;  // then, in the books; gradients are of what is held
};

// `alone` begins between steps. `numels` by registration.
int64_t forecast_peak_bytes(const std::vector<int64_t>& numels, const EngineConfig& config,
                            int world, const std::vector<Moment>& alone);

}  // namespace equigrad::perf
