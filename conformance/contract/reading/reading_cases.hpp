// ReadingCases: what configurations are read as, line 15 of the contract, and which are refused and
// in which words, line 17.
//
// Invariants: those of programs.hpp; no case shares a line with the engine's parser or its table.
// Units: none.   Errors: none.
// Depends on: contract_spec.hpp.
#pragma once

#include <vector>

#include "conformance/contract/players/contract_spec.hpp"

namespace equigrad::conformance::contract {

std::vector<Case> read_keys();       // key by key
std::vector<Case> read_types();      // types and loss scales
std::vector<Case> read_schedules();  // schedules; keys without effect; page and schema
std::vector<Case> refused_values();  // by type and range
std::vector<Case> refused_keys();    // those that do not go together
std::vector<Case> refused_types();   // so are types, loss scales and schedules
std::vector<Case> refused_names();   // of keys; what is no JSON

}  // namespace equigrad::conformance::contract
