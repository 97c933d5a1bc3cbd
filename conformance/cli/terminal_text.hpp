// Terminal text: how wide a terminal is, tables, and a drawing of numbers.
//
// Invariants: nothing here writes; texts have no escape sequences, so that they are the same in a
// terminal and in a file.
// Units: columns are characters of UTF-8, each taken to be one wide.
// Errors: none.
// Depends on: POSIX and reports/text.hpp (sources only), the C++ standard library.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace equigrad::conformance::cli {

// Of the terminal that the descriptor is; else what COLUMNS says, or 100. At least 40.
std::size_t columns_of(int descriptor);

// The first column to the left and the others to the right, two spaces apart.
std::string aligned(const std::vector<std::vector<std::string>>& rows);

// Numbers from left to right as points, up to `width` of them, with the highest and the lowest at
// the side; means where there are more. Empty where fewer than three are finite.
std::string drawn(const std::vector<double>& values, std::size_t width, std::size_t height);

}  // namespace equigrad::conformance::cli
