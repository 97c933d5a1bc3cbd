// GeneratedRuns: generated cases over process slots, for a time or a number of cases, with what
// they have covered; and those that failed, shrunk.
//
//   a slot: a workload's twin, then its executions; the next workload
//   afterwards: for the first failures, simpler cases as long as they fail in the same way
//
//   <keep>/<id>/  case.json     the case as it was drawn       config.json  what initialize() got
//                 smaller.json  the last simpler case          message.txt, smaller.txt, tensors
//
// Invariants: case `Generated.<seed>.<workload>.<execution>` depends on these numbers alone; with a
// number of cases, so does what is run, but for the last workloads. A case in which every step
// overflows has nothing to compare: it counts as replaced, and another one takes its place.
// Failures are cases of the record, what held is counted.
// Units: seconds of wall clock.
// Errors: equigrad::Error where the folder of failures cannot be written.
// Depends on: generator/, campaigns/process_slots.hpp, reports/record.hpp. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/campaigns/process_slots.hpp"
#include "conformance/generator/workload.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

// The id of a case that is not drawn: of a file.
inline constexpr const char* kFileCase = "Generated.file";

struct GeneratedOptions {
  uint64_t seed = 1;
  int64_t count = 0;               // cases that compare something; 0: no limit
  double seconds = 0;              // 0: no limit; one of the two must be there
  bool only_meshes = false;        // workloads whose ranks share a model or a sequence
  double shrink_s = 30;            // for each of the first failures
  std::size_t most_failures = 20;  // after them no case is begun: there is enough to look at
  std::string keep = {};           // folder of the failures; empty: none is kept
  std::string replay_prefix = {}, replay_suffix = {};
  // As a shell has them: that folder, and the file of the case kFileCase.
  std::string replay_keep = {}, replay_file = {};
  std::string fault = {};  // planted into every case; for trying the failure path
  bool quiet = false;
};

// Adds failures to run.cases, and what was run to run.generated.
void run_generated(const GeneratedOptions& options, ProcessSlots& slots, reports::Run& run);
// These cases, each of which is a case of the record, whatever the options count.
void run_generated(const GeneratedOptions& options, const std::vector<GeneratedCase>& cases,
                   ProcessSlots& slots, reports::Run& run);

}  // namespace equigrad::conformance
