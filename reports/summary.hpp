// Summary: the cases of a run counted by their dimensions, for the writers that show tables.
//
// Invariants: values() orders numbers as numbers and everything else by first appearance, and every
//   table uses that order. A margin of NaN is worse than inf, which is worse than any number.
// Units: as in record.hpp.
// Errors: none. The pointers live as long as the Run they came from.
// Depends on: reports/record.hpp.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

struct LaneTotal {
  std::string name;
  int64_t cases = 0;  // where this lane ran
  int64_t compared = 0;
  int64_t differing = 0;
  int64_t wrong = 0;  // lanes that failed, crashed or timed out
  double margin = 0;
  double ulp = 0;
};

struct Group {
  std::vector<std::string> key;  // one value for each dimension that was asked for
  Counts counts;
  double margin = 0;  // the worst of all lanes
  double seconds = 0;
  std::vector<LaneTotal> lanes;  // in order of first appearance
  std::vector<const Case*> cases;

  // The worst that happened: a failure before a crash before a time-out before passes.
  Verdict verdict() const;
  const LaneTotal* lane(const std::string& name) const;
};

struct Reason {
  Verdict verdict;  // Skipped or NotRun
  std::string text;
  int64_t cases = 0;
};

// Of a lane: the margin where it is "bounded", else how many differ; "-" where it did not run.
std::string lane_text(const Group& group, const std::string& lane_name);

// What a run found for a line of the contract or for one of its cases, by stage. A contract case
// says where it belongs by its dimensions "section" and "case". Rows come in the order of
// Run::statements; a section's row counts all its cases.
struct ContractRow {
  const Statement* statement = nullptr;
  std::map<std::string, Counts> stages;  // stage -> its cases
  Counts sum;                            // of all stages
};

std::vector<ContractRow> contract_rows(const Run& run);

bool all_hold(const Counts& counts);  // and some were run
// "22" when all hold, "20/22" when some do not, "-" where there is none.
std::string held_text(const Counts& counts);

bool worse_margin(double a, double b);  // a is worse than b

std::vector<std::string> values(const Run& run, const std::string& dimension_name);
std::vector<Group> group_by(const Run& run, const std::vector<std::string>& dimension_names);
Group whole(const Run& run);

// Cases that failed, crashed or timed out, in order of the run; worst_first() puts failures with
// the largest margin in front.
std::vector<const Case*> wrong_cases(const Run& run);
std::vector<const Case*> worst_first(std::vector<const Case*> cases);

// Why cases were skipped or not run, most frequent first.
std::vector<Reason> reasons(const Run& run);

}  // namespace equigrad::reports
