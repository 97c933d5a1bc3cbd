// ContractRunner: contract cases over a pool of ranks, as records.
//
// Invariants: every spec is in the result once, in the order given, with a verdict.
// Units: time-outs are seconds of wall clock times timeout_scale.
// Errors: equigrad::Error when the pool cannot start.
// Depends on: contract_case.hpp, matrix.hpp, program.hpp, ranks/pool.hpp, reports/record.hpp. No
// torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/contract/contract_case.hpp"
#include "conformance/on_rank/program.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance::contract {

struct ContractOptions {
  std::vector<Spec> specs;
  uint64_t seed = 1;
  DataFiles data;
  std::string replay_prefix = "equigrad run";
  std::string replay_suffix;
  double timeout_scale = 1;
  bool quiet = false;
  int slots = 0;       // 0: one a core and one more
  bool fault = false;  // every program plays its wrong way
  std::string plant;   // a fault of the catalogue, for every case; empty: none
};

// Of the default selection, or of all.
std::vector<Spec> selected_specs(const Selection& selection, bool full);
// The contract's lines and its cases in words.
std::vector<reports::Statement> statements();

std::vector<reports::Case> run_contract(const ContractOptions& options);
// Records of cases that are not run at all, for this reason.
std::vector<reports::Case> not_run(const ContractOptions& options, const std::string& reason);

}  // namespace equigrad::conformance::contract
