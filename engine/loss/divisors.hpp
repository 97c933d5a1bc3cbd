// Divisors: the one place that combines 1/accumulation_steps and 1/world_size.
//
// Neither enters the autograd graph: a gradient is summed over passes and ranks first, and
// multiplied once, in fp32, by the averaging factor. So the call style cannot change a bit (1/3 at
// the loss and 1/3 at the outputs differ in 82-86 % of all elements), and engines in a chain never
// divide twice.
//
// Invariants: the factor is 1 / (accumulation_steps * world_size), computed in fp64 and rounded
// once to fp32. A pass with scale_wrt_gas = false weighs accumulation_steps times as much as
// another, for that pass only.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <cstdint>

namespace equigrad::loss {

inline double averaging_factor(int64_t accumulation_steps, int world_size) {
  return static_cast<double>(static_cast<float>(
      1.0 / (static_cast<double>(accumulation_steps) * static_cast<double>(world_size))));
}

// What a pass counts in the sum that averaging_factor divides.
inline double pass_weight(int64_t accumulation_steps, bool divided_by_accumulation_steps) {
  return divided_by_accumulation_steps ? 1.0 : static_cast<double>(accumulation_steps);
}

}  // namespace equigrad::loss
