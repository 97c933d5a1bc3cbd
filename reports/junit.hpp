// JUnit: the run as test cases for CI servers.
//
// One suite for each stage, precision and number of ranks, and one for the planted faults. Failed
// comparisons are <failure>; crashes and time-outs are <error>, so that a broken machine is not
// mistaken for a wrong gradient; skipped and not run are <skipped> with their reason.
//
// Invariants: test names are unique in the file (servers drop repeated ones), text is legal XML 1.0
//   whatever the messages hold, and no CDATA section can be closed from inside.
// Units: time is in seconds.
// Errors: none.
// Depends on: reports/summary.hpp, reports/text.hpp.
#pragma once

#include <string>

#include "reports/record.hpp"

namespace equigrad::reports {

std::string to_junit(const Run& run);

}  // namespace equigrad::reports
