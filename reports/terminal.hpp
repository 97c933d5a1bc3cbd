// Terminal: the run as a table for people, one row for each stage, precision and number of ranks.
//
// Settings and seed first, planted faults next, then the table, what went wrong with its message,
// what was not run, and last the verdict and the line that repeats the run.
//
// Invariants: without colour the text is plain ASCII apart from what messages bring along. Lines
//   that are not results start with '#'.
// Units: the second header line of the table names them.
// Errors: none.
// Depends on: reports/summary.hpp, reports/text.hpp.
#pragma once

#include <string>

#include "reports/record.hpp"

namespace equigrad::reports {

struct TerminalOptions {
  bool colour = false;
  size_t messages = 20;  // failures shown in full; the others are counted
};

std::string to_terminal(const Run& run, const TerminalOptions& options = {});

}  // namespace equigrad::reports
