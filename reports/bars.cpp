#include "reports/bars.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "reports/document.hpp"

namespace equigrad::reports {
namespace {

constexpr std::array<const char*, 8> kKindColours = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                     "#56b4e9", "#d55e00", "#999999", "#f0e442"};

const char* kind_colour(std::size_t kind) {
  return kKindColours[std::min(kind, kKindColours.size() - 1)];
}

}  // namespace

std::string bar_cell(const std::vector<int64_t>& kinds_bytes, int64_t most_bytes) {
  std::string out =
      "<td class=\"bar-cell\"><svg viewBox=\"0 0 100 1\" preserveAspectRatio=\"none\" "
      "aria-hidden=\"true\">";
  double begin = 0;
  for (std::size_t i = 0; i < kinds_bytes.size() && most_bytes > 0; ++i) {
    if (kinds_bytes[i] == 0) continue;
    const double width =
        std::round(1e5 * static_cast<double>(kinds_bytes[i]) / static_cast<double>(most_bytes)) /
        1e3;
    out += drawn_bar(begin, width, kind_colour(i));
    begin += width;
  }
  return out + "</svg></td>";
}

std::string swatch(std::size_t kind) {
  return std::string(
             "<svg class=\"swatch\" viewBox=\"0 0 1 1\" width=\"11\" height=\"11\" "
             "aria-hidden=\"true\"><rect width=\"1\" height=\"1\" fill=\"") +
         kind_colour(kind) + "\"/></svg>";
}

}  // namespace equigrad::reports
