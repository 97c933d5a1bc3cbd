// Parts: a run whose covering selection was run before the rest, part by part.
//
// Invariants: a run without parts has no lines and one range, without a name.
// Units: elements; seconds of wall clock.   Errors: none.   Depends on: record.hpp.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

// The cases [begin, end) of a run.
struct PartRange {
  std::string name;
  std::size_t begin = 0, end = 0;
};
std::vector<PartRange> part_ranges(const Run& run);

// Its cases are those of the generated ones that failed.
inline constexpr const char* kGeneratedPart = "generated";

// "generated: HELD  3,412 cases of 427 workloads, ..."; empty where none were.
std::string generated_line(const Run& run);

// A line for each part, such as "covering: HELD  88 cases, 25,378,723 elements compared, 0
// differing where none may, in 14.4 s". Where a planted fault was not caught, it is VOID.
std::vector<std::string> part_lines(const Run& run);

}  // namespace equigrad::reports
