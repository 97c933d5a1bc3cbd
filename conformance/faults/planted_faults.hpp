// PlantedFaults: the faults that every run must catch before its green counts, by name.
//
// Invariants: every name is one that make_faulty (faulty_communicator.hpp) knows.
// Units: none.   Errors: none.   Depends on: the C++ standard library only.
#pragma once

#include <string>
#include <vector>

namespace equigrad::conformance::faults {

struct Fault {
  std::string name;  // micro_batch_dropped
  std::string what;  // in words, for the report
  std::string in;    // the id of a case in which it can act, and which takes milliseconds
};
const std::vector<Fault>& planted_faults();

}  // namespace equigrad::conformance::faults
