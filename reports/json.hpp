// Json: run.json, the run in full for programs, and the way back.
//
// The format is published in reports/run.schema.json. from_json(to_json(run)) is run, bit for bit.
//
// Invariants: a float is a number that reads back to the same double; NaN and infinities are the
//   strings "nan", "inf", "-inf". Values of a worst element come with their 64 bits in hex, which
//   win when read. The seed is a decimal string: 64 bits do not fit a JSON number everywhere.
//   "verdict" repeats outcome, exit code and counts for readers; from_json() ignores it.
//   Counts are whole numbers from 0 whose sum is at most 2^62. A document has at most 32 levels.
// Errors: from_json throws std::runtime_error that says what was expected, and what it got.
// Depends on: nlohmann/json (in the source only), reports/record.hpp.
#pragma once

#include <string>

#include "reports/record.hpp"

namespace equigrad::reports {

std::string to_json(const Run& run);
Run from_json(const std::string& text);

}  // namespace equigrad::reports
