// CheckCases: the cases that options ask for.
//
// Invariants: every combination of the options' values is a case, in the order given, or is counted
// under the reason why it is none.
// Units: none.
// Errors: CheckRefused for a value that an option does not have; ConfigError for a configuration
// that the engine refuses.
// Depends on: check.hpp, check_case.hpp; reports/merge.hpp (sources only).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "conformance/check/check.hpp"
#include "conformance/check/check_case.hpp"

namespace equigrad::conformance {

struct CheckCases {
  std::vector<CheckCase> cases = {};
  std::map<std::string, int64_t> not_run = {};  // reason: cases
  std::vector<std::string> notes = {};          // what was taken out of a configuration
};

// In the first call style only.
CheckCases cases_without_styles(const CheckOptions& options);
// Leaves out those that no filter matches in any call style, if there are others.
void keep_possible(CheckCases& cases, const std::vector<std::string>& filters);
// Each of them in every call style that the passes have.
void add_styles(CheckCases& cases, const CheckOptions& options, bool gives_loss);
// Keeps those that match one of the filters, of which each must match one; without any, all.
void keep_selected(CheckCases& cases, const std::vector<std::string>& filters);
void keep_only(CheckCases& cases, const std::string& glob);  // of EQUIGRAD_CHECK_ONLY; empty: all
// The one with most ranks, and of those with most micro-batches.
const CheckCase& widest_of(const std::vector<CheckCase>& cases);

}  // namespace equigrad::conformance
