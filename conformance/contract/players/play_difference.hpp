// PlayDifference: the first thing in which the engine's play was another than the reference's:
// which call gave it, of which parameter, and the values.
//
// Invariants: `order` grows in the order of the program, alike on every rank, so that the least of
// all ranks is where to look.
// Shapes: got and want are flat, elements [begin, begin + numel) of `whole`; previous is like
//   whole. Undefined: nothing was compared, or it is not known.
// Units: windows count from 0.   Errors: none.
// Depends on: ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace equigrad::conformance::contract {

// Who gave what is compared or seen.
struct Source {
  std::string call;       // "access().full_gradient(\"w\")", "step()"
  std::string parameter;  // empty: of none
  std::string what;       // gradient, master, a state, parameter; else the program's own word
};

struct PlayDifference {
  int64_t order = 0;  // comparisons and checks before it
  int64_t window = 0;
  int64_t accumulation = 1;
  double loss_scale = 1;  // of the step, as the reference has it
  Source source;
  std::string finding;  // what does not hold; empty: elements differ
  int64_t begin = 0;
  at::Tensor got, want, whole, previous;
};

}  // namespace equigrad::conformance::contract
