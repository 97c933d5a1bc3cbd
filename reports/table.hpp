// Table: rows in a terminal, whose columns stand under each other.
//
// Invariants: the first row is the head, whose cells name the columns; a row may have fewer cells.
// Columns stand two spaces apart, and no line ends in a space.
// Units: a width is one of characters of UTF-8, each taken to be one wide.
// Errors: none; a name that no column has leaves nothing out.
// Depends on: reports/text.hpp (source only), the C++ standard library.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace equigrad::reports {

using TableRow = std::vector<std::string>;

// Of each column, the widest cell.
std::vector<std::size_t> widths_of(const std::vector<TableRow>& rows);
// Of a whole line.
std::size_t line_width(const std::vector<TableRow>& rows);

// Leaves columns out in this order until a line has at most so many characters; the names of those.
// 0: every line fits.
std::vector<std::string> narrow(std::vector<TableRow>& rows, std::size_t columns,
                                const std::vector<std::string>& order);

// A line each, without its end; the first column and those of these names to the left, the others
// to the right.
std::vector<std::string> aligned_lines(const std::vector<TableRow>& rows,
                                       const std::vector<std::string>& left = {});
std::string aligned(const std::vector<TableRow>& rows, const std::vector<std::string>& left = {});

}  // namespace equigrad::reports
