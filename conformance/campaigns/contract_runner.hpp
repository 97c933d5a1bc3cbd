// ContractRunner: contract cases over process slots, as records.
//
// Invariants: every spec is in the result once, in the order given, with a verdict.
// Units: seconds of wall clock.
// Errors: equigrad::Error when the pool cannot start.
// Depends on: process_slots.hpp, alone.hpp, contract_case.hpp, matrix.hpp, program.hpp,
// reports/record.hpp. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conformance/campaigns/alone.hpp"
#include "conformance/campaigns/process_slots.hpp"
#include "conformance/campaigns/progress.hpp"
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
  bool fail_fast = false;                   // after a case that fails no other is begun
  int slots = 0;                            // 0: one a core and one more, if memory allows
  bool fault = false;                       // every program plays its wrong way
  std::string plant;                        // a fault of the catalogue, for every case; empty: none
  std::shared_ptr<Progress> progress = {};  // of all parts; null: one of its own
};

// Of the default selection, or of all.
std::vector<Spec> selected_specs(const Selection& selection, bool full);
// The contract's lines and its cases in words.
std::vector<reports::Statement> statements();

// `alone` gets the cases that fail; null: they are not repeated.
std::vector<reports::Case> run_contract(const ContractOptions& options, ProcessSlots& slots,
                                        Alone* alone = nullptr);
std::vector<reports::Case> run_contract(const ContractOptions& options);  // in slots of its own
// Records of cases that are not run at all, for this reason.
std::vector<reports::Case> not_run(const ContractOptions& options, const std::string& reason);

}  // namespace equigrad::conformance::contract
