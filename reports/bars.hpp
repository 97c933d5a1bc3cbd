// Bars: what is held of each kind, as pieces of a bar in a table's cell, and the colours of kinds.
//
// Colours are Okabe and Ito's, told apart with every common colour blindness, on light and on dark
// (Okabe, Ito 2008, "Color universal design"); the eighth kind and all behind it have one colour.
// Units: bytes; a bar is as long as its share of the largest one.
// Errors: none.
// Depends on: the C++ standard library; document.hpp (sources only).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace equigrad::reports {

std::string bar_cell(const std::vector<int64_t>& kinds_bytes, int64_t most_bytes);
std::string swatch(std::size_t kind);  // a small square, before the kind's name

}  // namespace equigrad::reports
