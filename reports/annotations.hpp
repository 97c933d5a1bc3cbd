// Annotations: failures as GitHub workflow commands, shown on the page of the commit.
//
// Invariants: at most kAnnotations lines, because GitHub shows ten of a kind for a step and drops
//   the rest in silence: the nine worst failures and one line that counts the others. A message
//   cannot start a workflow command of its own. A void run is one line more important than all.
// Errors: none; a run in which nothing went wrong gives an empty string.
// Depends on: reports/summary.hpp, reports/text.hpp.
#pragma once

#include <string>

#include "reports/record.hpp"

namespace equigrad::reports {

inline constexpr size_t kAnnotations = 10;

std::string to_annotations(const Run& run);

}  // namespace equigrad::reports
