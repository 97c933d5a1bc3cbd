// RunChanges: what one record has that another has not: two commits, torch versions or machines.
//
//   equigrad diff A B
//
// Invariants: a case that both have is in at most one of the lists of verdicts, and in `numbers`
// only where its verdict is in none. Worse is a case that passed and does not any more, or compares
// nothing any more, or was skipped and is not run; and a run that held and does not.
// Units: seconds of wall clock, of single runs: a ratio of them is no measurement.
// Errors: none. The pointers live as long as the two records.
// Depends on: record.hpp.
#pragma once

#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

struct CasePair {
  const Case* before = nullptr;
  const Case* after = nullptr;
};

struct RunChanges {
  const Run* before = nullptr;
  const Run* after = nullptr;
  std::vector<CasePair> newly_failing, newly_passing;
  std::vector<CasePair> lost;   // passed or skipped, now less, but no failure
  std::vector<CasePair> other;  // verdicts that changed otherwise
  std::vector<CasePair>
      numbers;                  // one verdict; what was counted or the worst element's bits differ
  std::vector<CasePair> timed;  // both were run and passed
  std::vector<const Case*> only_before, only_after;
  std::size_t both_have = 0;  // cases; where it is 0 nothing was compared

  bool is_worse() const;
};
// Of two records of one case: what was counted, and the bits of the worst elements.
bool has_same_numbers(const CasePair& pair);
RunChanges changes(const Run& before, const Run& after);

// `before` and `after` are what the two are called.
std::string to_text(const RunChanges& changes, const std::string& before, const std::string& after);
std::string to_json(const RunChanges& changes, const std::string& before, const std::string& after);

}  // namespace equigrad::reports
