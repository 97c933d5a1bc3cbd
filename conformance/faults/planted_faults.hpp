// PlantedFaults: the faults that every run must catch before its green counts, by name.
//
// Invariants: every name is one of the catalogue's (fault.hpp).
// Units: none.   Errors: none.   Depends on: the C++ standard library only.
#pragma once

#include <string>
#include <vector>

namespace equigrad::conformance::faults {

struct PlantedFault {
  std::string name;  // micro_batch_dropped
  std::string in;    // the id of a case in which it can act, and which takes milliseconds
};
const std::vector<PlantedFault>& planted_faults();

}  // namespace equigrad::conformance::faults
