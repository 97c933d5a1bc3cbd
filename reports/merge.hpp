// Merge: records of shards, or of any runs, as one record.
//
// Invariants: a case is in the merged record once, with the verdict that it has in all records that
// ran it; a case that one of them did not reach is taken from one that did. A record's planted
// faults, its failure and its interruption stay: nothing that was not green becomes green. What no
// record has run is counted once. Shards of which one is missing make the record broken.
// Units: wall_s is the sum, the time of all machines. What the loss scale loses is a sum over
// records: of cases in two of them it counts twice.
// Errors: std::runtime_error, "[report merge] expected X, got Y. Remedy.", that names the records:
// other commits, versions, torch or seeds, a case with two verdicts, a shard twice, shards of
// different numbers or of different selections, generated cases in two records.
// Depends on: record.hpp.
#pragma once

#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

// Why cases of the catalogue are not in a record: they were left to another run.
inline constexpr const char* kNotSelected = "not selected";
inline constexpr const char* kOnlyWithFull = "only with --full";
inline constexpr const char* kNotInCovering = "not in the covering selection";
inline constexpr const char* kInOtherShards = "in the other shards";

bool is_left_to_others(const std::string& reason);
// counts() without what was left to other runs: of what this one was asked for.
Counts counts_of_selected(const Run& run);

struct NamedRun {
  std::string name;  // as it is called in errors
  Run run;
};
Run merged(const std::vector<NamedRun>& records);

}  // namespace equigrad::reports
