// CompareRuns: the runs of `equigrad compare`, one after another, and what they come to.
//
// Invariants: a run has processes of its own, so that one's memory is not another's; A goes first
// with every other seed, so that a machine which slows down slows both; what was found is in the
// comparison however it ends.
// Units: losses are means over ranks, seconds the slowest rank's, bytes the largest rank's.
// Errors: none of a rank's: they are the comparison's outcome.
// Depends on: cli.hpp, reports/comparison.hpp.
#pragma once

#include "conformance/cli/cli.hpp"
#include "reports/comparison.hpp"

namespace equigrad::conformance::cli {

// Prints a line for each run. `comparison` comes with its settings and gets all the rest.
void run_comparison(const CompareCommand& command, const ranks::Handler& serve,
                    reports::Comparison& comparison);

}  // namespace equigrad::conformance::cli
