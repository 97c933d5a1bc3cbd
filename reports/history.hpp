// History: what earlier runs of the same folder found, a line of history.jsonl each.
//
// Invariants: a line that cannot be read is left out; at most kMostPastRuns are kept, the latest.
// Units: seconds of wall clock.
// Errors: none.
// Depends on: reports/record.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

inline constexpr std::size_t kMostPastRuns = 200;

struct PastRun {
  std::string time, commit, command, outcome;
  int64_t executed = 0, failed = 0;  // cases; crashes and time-outs are failures here
  double wall_s = 0;
};

PastRun past_run(const Run& run);
// Oldest first.
std::vector<PastRun> read_history(const std::string& lines);
std::string history_lines(const std::vector<PastRun>& runs);

// The words of a command that say what is run: neither the program nor where its results go.
std::string selecting_words(const std::string& command);

// A section of the run's page: this run among the earlier ones that ran the same, others counted;
// empty where there is none.
std::string page_history(const Run& run, const std::vector<PastRun>& earlier);

}  // namespace equigrad::reports
