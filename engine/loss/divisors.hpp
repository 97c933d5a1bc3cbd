// Divisors: the one place that combines 1/accumulation_steps and 1/world_size.
//
// Neither enters the autograd graph: a gradient is summed over passes and ranks first, and
// multiplied once, in fp32, by the averaging factor. So the call style cannot change a bit (1/3 at
// the loss and 1/3 at the outputs differ in 82-86 % of all elements), and engines in a chain never
// divide twice.
//
//   kind        before the sum   after it
//   AfterSum    1                1 / (accumulation_steps world_size)
//   BeforeSum   1 / world_size   1 / accumulation_steps
//   Around      1 / f            f / (accumulation_steps world_size)      f = predivide_factor
//   Never       1                1 / accumulation_steps
//
// Invariants: each factor is computed in fp64 and rounded once to fp32. A pass with scale_wrt_gas =
// false weighs accumulation_steps times as much as another, for that pass only.
// Errors: none.
// Depends on: config/precision.hpp.
#pragma once

#include <cstdint>

#include "engine/config/precision.hpp"

namespace equigrad::loss {

inline double rounded(double factor) { return static_cast<double>(static_cast<float>(factor)); }

inline double averaging_factor(const AveragingConfig& averaging, int64_t accumulation_steps,
                               int world_size) {
  const auto passes = static_cast<double>(accumulation_steps);
  const double all = passes * static_cast<double>(world_size);
  switch (averaging.kind) {
    case AveragingConfig::Kind::AfterSum:
      return rounded(1.0 / all);
    case AveragingConfig::Kind::Around:
      return rounded(averaging.predivide_factor / all);
    case AveragingConfig::Kind::BeforeSum:
    case AveragingConfig::Kind::Never:
      break;
  }
  return rounded(1.0 / passes);
}

inline double factor_before_sum(const AveragingConfig& averaging, int world_size) {
  if (averaging.kind == AveragingConfig::Kind::BeforeSum) {
    return rounded(1.0 / static_cast<double>(world_size));
  }
  if (averaging.kind == AveragingConfig::Kind::Around) {
    return rounded(1.0 / averaging.predivide_factor);
  }
  return 1.0;
}

// What a pass counts in the sum that averaging_factor divides.
inline double pass_weight(int64_t accumulation_steps, bool divided_by_accumulation_steps) {
  return divided_by_accumulation_steps ? 1.0 : static_cast<double>(accumulation_steps);
}

}  // namespace equigrad::loss
