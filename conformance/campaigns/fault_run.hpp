// FaultRun: the suite against every fault of the catalogue, as one kill matrix.
//
//   the panel's first cases without a fault -> every fault through them, until it is caught (full:
//   through all) -> where one is not, the same of the others -> generated cases without a fault ->
//   survivors through the contract -> (thin) the caught ones on through the panel and the covering
//   selection, until three cases have caught each
//
// The panel and the first of the contract's cases are the covering selection: what they catch is
// what `equigrad run --covering` alone would.
//
// Invariants: nothing counts unless every case that a fault comes to holds without one; every fault
// that is given is in the matrix once, in the order given; what was not run says so.
// Units: minutes and time-outs are wall clock.
// Errors: equigrad::Error when the pool cannot start.
// Depends on: fault_panel.hpp, program.hpp, reports/kill_matrix.hpp. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/on_rank/program.hpp"
#include "reports/kill_matrix.hpp"

namespace equigrad::conformance {

struct FaultOptions {
  std::vector<std::string> faults;
  std::vector<CaseSpec> panel;
  std::map<std::string, int64_t> not_run;  // cases that the panel lacks, by reason
  bool full = false;
  bool covering_only = false;  // nothing but the covering selection's cases
  bool thin = false;           // go on until reports::kEnoughCatches cases have caught a fault
  double minutes = 10;         // 0: as long as it takes
  int64_t clean = 0;           // generated cases without a fault
  uint64_t seed = 1234;
  DataFiles data;
  std::string replay_prefix;  // "equigrad run"
  std::string replay_suffix;
  double timeout_scale = 1;
  bool quiet = false;
  int slots = 0;
  ranks::Handler serve = conformance::serve;
  ranks::TakeDevice device = nullptr;  // null: the CPU
};

// Fills in all but the environment and the command.
reports::KillMatrix run_faults(const FaultOptions& options);

}  // namespace equigrad::conformance
