// Drawing: the pieces of SVG that the pages' drawings share.
//
// Invariants: balanced, escaped; drawn in the page's own colour where none is given.
// Units: places in drawing units, of which a drawing is kDrawingWidth wide, rounded to a tenth.
// Errors: none.
// Depends on: reports/text.hpp.
#pragma once

#include <string>

namespace equigrad::reports {

inline constexpr double kDrawingWidth = 760;

std::string at(double place);
std::string drawing(const std::string& title, double height, const std::string& svg);
std::string drawn_text(double x, double y, const char* anchor, const std::string& words);
// `how`: attributes, as in stroke="currentColor"
std::string drawn_line(double x1, double y1, double x2, double y2, const std::string& how);
// A piece of a bar that is one unit high, in thousandths of a unit.
std::string drawn_bar(double x, double width, const char* fill, const std::string& css_class = {});
std::string drawn_curve(const std::string& points, const std::string& how);

}  // namespace equigrad::reports
