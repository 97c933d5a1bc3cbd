// Survivors: faults which no check can see, each with the proof that there is nothing to see.
//
// Invariants: every name is one of the catalogue's; a proof says why no bit changes that anybody
// reads afterwards, at any stage and in any precision. A fault of this list that is caught makes
// `equigrad faults` fail: its proof was wrong.
// Units: none.   Errors: none.   Depends on: the C++ standard library only.
#pragma once

#include <string>
#include <vector>

namespace equigrad::conformance::faults {

struct Survivor {
  std::string fault;
  std::string proof;
};
const std::vector<Survivor>& survivors();

}  // namespace equigrad::conformance::faults
