// Markdown: the step summary that a CI server shows under a job.
//
// Invariants: at most max_bytes of text (GitHub cuts a summary off at 1 MiB without a word), ending
//   in a line that says how many failures did not fit. Foreign text cannot leave its table cell or
//   its code block.
// Units: bytes.
// Errors: none.
// Depends on: reports/summary.hpp, reports/text.hpp.
#pragma once

#include <string>

#include "reports/record.hpp"

namespace equigrad::reports {

std::string to_markdown(const Run& run, size_t max_bytes = 900 * 1024);

}  // namespace equigrad::reports
