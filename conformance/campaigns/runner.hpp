// Runner: a selection of the matrix over a pool of ranks, as one record.
//
//   planted faults -> for every tuple: its twin, then its cases, as many at once as there are slots
//                     slot 0: ranks 0 1 2 3      slot 1: ranks 4 5 6 7      ...
//
// Invariants: every case given is in the record once, in the order given, with a verdict; a run
// that is interrupted records what it has, the rest as not run. Twins are removed once used.
// Units: time-outs are seconds of wall clock times timeout_scale.
// Errors: equigrad::Error when the pool cannot start. When the planted faults got no answer
// (self_check.hpp) no case is begun, and Run::failure says why.
// Depends on: matrix.hpp, judge.hpp, program.hpp, ranks/pool.hpp, reports/record.hpp. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/on_rank/program.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

struct RunOptions {
  std::vector<CaseSpec> cases;
  uint64_t seed = 1;
  DataFiles data;
  std::string keep;           // folder of the failures (kept_failures.hpp); empty: none is kept
  bool keep_tensors = true;   // there; false: the configurations only
  std::string replay_prefix;  // "equigrad run"; the id and the seed follow
  std::string replay_suffix;  // such as " --data-dir D"
  double timeout_scale = 1;
  bool quiet = false;
  int slots = 0;      // 0: as campaigns/slots.hpp says
  std::string fault;  // planted into every case; for trying the failure path
  nlohmann::json knobs = nlohmann::json::object();  // on_rank/run.hpp
  ranks::Handler serve = conformance::serve;        // what the ranks run
};

// Fills in self_checks, cases, memory, underflow, seed, failure, interrupted, signal and wall_s.
reports::Run run_matrix(const RunOptions& options);

}  // namespace equigrad::conformance
