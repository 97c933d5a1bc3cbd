// Underflow: what loss scales lost of the gradients of a run, in words.
//
// Invariants: rows of one model are one line on the terminal and one each on the page.
// Units: elements; scales are powers of two, written as such.
// Errors: none.
// Depends on: reports/record.hpp.
#pragma once

#include <string>

#include "reports/record.hpp"

namespace equigrad::reports {

// "2^16"; "none" for 0.
std::string scale_text(double scale);

std::string underflow_lines(const Run& run);  // a line a model, each ended by a newline
std::string page_underflow(const Run& run);   // a section of the page

}  // namespace equigrad::reports
