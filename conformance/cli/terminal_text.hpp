// Terminal text: how wide a terminal is, and a drawing of numbers.
//
// Invariants: nothing here writes; texts have no escape sequences, so that they are the same in a
// terminal and in a file.
// Units: columns are characters of UTF-8, each taken to be one wide.
// Errors: none.
// Depends on: POSIX (source only), the C++ standard library.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace equigrad::conformance::cli {

// Of the terminal that the descriptor is; else what COLUMNS says, or 100. At least 40.
std::size_t columns_of(int descriptor);
// The same where it is a terminal or COLUMNS is set. Else 0, no limit: who reads lines from a pipe
// or a file finds them whole.
std::size_t limit_of_columns(int descriptor);

// Numbers from left to right as points, up to `width` of them, with the highest and the lowest at
// the side; means where there are more. Empty where fewer than three are finite.
std::string drawn(const std::vector<double>& values, std::size_t width, std::size_t height);

}  // namespace equigrad::conformance::cli
