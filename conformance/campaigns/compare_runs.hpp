// CompareRuns: the runs of `equigrad compare`, one after another, and what they come to.
//
// Invariants: a run has processes of its own, so that one's memory is not another's; A goes first
// with every other seed, so that a machine which slows down slows both; what was found is in the
// comparison however it ends.
// Units: losses are means over ranks, seconds the slowest rank's, bytes the largest rank's.
// Errors: none of a rank's: they are the comparison's outcome.
// Depends on: program.hpp, reports/comparison.hpp.
#pragma once

#include <cstdint>
#include <string>

#include "conformance/on_rank/program.hpp"
#include "reports/comparison.hpp"

namespace equigrad::conformance {

struct CompareOptions {
  std::string data = "text";  // or images
  int steps = 1000;           // of a run
  int seeds = 5;              // pairs of runs
  int world = 2;
  int layers = 3, dim = 96, heads = 4, context = 64;
  uint64_t seed = 1234;  // the first
  std::string data_dir;
  double timeout_scale = 1;
  bool quiet = false;
  ranks::TakeDevice device = nullptr;  // null: the CPU
};

// Prints a line for each run. `comparison` comes with its settings and gets all the rest.
void run_comparison(const CompareOptions& options, const ranks::Handler& serve,
                    reports::Comparison& comparison);

}  // namespace equigrad::conformance
