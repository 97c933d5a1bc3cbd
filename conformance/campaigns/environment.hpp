// Environment: what every report says about where and with what a run was made.
//
// Invariants: a fact that cannot be read is "unknown" or 0, never an error.
// Units: `time` is UTC, ISO 8601.   Errors: none.
// Depends on: reports/record.hpp; equigrad_build_info, POSIX (sources only).
#pragma once

#include "reports/record.hpp"

namespace equigrad::conformance {

reports::Environment environment_here(bool on_cuda = false);

}  // namespace equigrad::conformance
