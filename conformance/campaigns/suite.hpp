// Suite: one run of the matrix and of the contract in the same process slots, the covering
// selection's cases of both first, as one record of two parts.
//
//   planted faults -> covering: each value once, then all of the matrix, then the contract
//   -> what those came to -> rest: matrix, contract -> generated cases
//
// Invariants: every case is run once; a tuple's twin is made once, whichever part needs it first.
// Units: seconds of wall clock.
// Errors: equigrad::Error when the pool cannot start; what runner.hpp says of planted faults.
// Depends on: runner.hpp, contract_runner.hpp, covering_selection.hpp. No torch.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "conformance/campaigns/contract_runner.hpp"
#include "conformance/campaigns/generated_runs.hpp"
#include "conformance/campaigns/runner.hpp"

namespace equigrad::conformance {

struct SuiteOptions {
  RunOptions matrix;
  contract::ContractOptions contract;
  std::optional<GeneratedOptions> generated = {};   // after the others; nothing: none
  std::vector<GeneratedCase> generated_cases = {};  // these, and none is drawn
  bool in_parts = false;  // false: as many cases as were chosen, in any order
  // Ids of all cases of both, if they are to be run one after the other in this order, in the same
  // rank processes; empty: they are not.
  std::vector<std::string> one_process = {};
  // Called when cases that have every value of every dimension have ended and others of the
  // covering selection follow, with the record of those alone.
  std::function<void(const reports::Run&)> first_ended = [](const reports::Run&) {};
  // Called when the covering selection's cases have ended and others follow, with the record of
  // those alone.
  std::function<void(const reports::Run&)> covering_ended = [](const reports::Run&) {};
};

reports::Run run_suite(SuiteOptions options);

}  // namespace equigrad::conformance
