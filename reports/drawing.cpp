#include "reports/drawing.hpp"

#include <cmath>

#include "reports/text.hpp"

namespace equigrad::reports {

std::string at(double place) { return shortest(std::round(place * 10) / 10); }

std::string drawing(const std::string& title, double height, const std::string& svg) {
  return "<svg class=\"chart\" viewBox=\"0 0 " + at(kDrawingWidth) + " " + at(height) +
         "\" width=\"" + at(kDrawingWidth) + "\" role=\"img\" font-size=\"12\">\n<title>" +
         escape_xml(title) + "</title>\n" + svg + "</svg>\n";
}

std::string drawn_text(double x, double y, const char* anchor, const std::string& words) {
  return "<text x=\"" + at(x) + "\" y=\"" + at(y) + "\" text-anchor=\"" + anchor +
         "\" fill=\"currentColor\">" + escape_xml(words) + "</text>\n";
}

std::string drawn_line(double x1, double y1, double x2, double y2, const std::string& how) {
  return "<line x1=\"" + at(x1) + "\" y1=\"" + at(y1) + "\" x2=\"" + at(x2) + "\" y2=\"" + at(y2) +
         "\" " + how + "/>\n";
}

std::string drawn_bar(double x, double width, const char* fill, const std::string& css_class) {
  const auto rounded = [](double value) { return shortest(std::round(value * 1000) / 1000); };
  return "<rect x=\"" + rounded(x) + "\" width=\"" + rounded(width) + "\" height=\"1\" fill=\"" +
         fill + (css_class.empty() ? "\"/>" : "\" class=\"" + css_class + "\"/>");
}

std::string drawn_curve(const std::string& points, const std::string& how) {
  return "<polyline points=\"" + points + "\" fill=\"none\" stroke-width=\"1.6\" " + how + "/>\n";
}

}  // namespace equigrad::reports
