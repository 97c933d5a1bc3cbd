#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "reports/document.hpp"
#include "reports/race.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr double kWidth = kDrawingWidth, kLeft = 190, kRight = 70, kRowHeight = 22, kTop = 24;
constexpr double kHeight = 320, kPlotLeft = 64, kPlotRight = 190, kBottom = 44;
// Ours blue, peers vermilion, what does not communicate violet.
constexpr const char* kOurs = "#1f6f9f";
constexpr const char* kPeers = "#c7482b";
constexpr const char* kAlone = "#8461b3";

const char* colour_of(const std::string& contestant) {
  if (contestant.find("alone") != std::string::npos) return kAlone;
  return contestant.rfind("Equigrad", 0) == 0 ? kOurs : kPeers;
}

// Logarithmic in both directions, so that what is proportional is a straight line.
struct Plane {
  double left = 1, right = 1, low = 1, high = 1;
  double x(double value) const {
    const double range = std::log(right / left);
    return kPlotLeft +
           (kWidth - kPlotLeft - kPlotRight) * (range > 0 ? std::log(value / left) / range : 0.5);
  }
  double y(double value) const {
    const double range = std::log(high / low);
    return kTop + (kHeight - kTop - kBottom) * (range > 0 ? std::log(high / value) / range : 0.5);
  }
};

Plane plane_of(const std::vector<ScalingPoint>& points) {
  Plane plane{points.front().along, points.back().along, 1e300, 1e-300};
  const auto widen = [&](double value) {
    if (!(value > 0)) return;
    plane.low = std::min(plane.low, value);
    plane.high = std::max(plane.high, value);
  };
  for (const ScalingPoint& point : points) {
    widen(point.limit_s);
    for (const auto& [name, seconds] : point.step_s) widen(seconds);
  }
  return plane;
}

std::string curve(const Plane& plane, const std::vector<ScalingPoint>& points,
                  const std::string& name, int number) {
  std::string places;
  double last_y = 0;
  for (const ScalingPoint& point : points) {
    const auto found = point.step_s.find(name);
    if (found == point.step_s.end()) continue;
    last_y = plane.y(found->second);
    places += at(plane.x(point.along)) + "," + at(last_y) + " ";
  }
  constexpr std::array<const char*, 4> kDashes = {"", "5 3", "2 3", "8 3 2 3"};
  const std::string how = std::string("stroke=\"") + colour_of(name) + "\" stroke-dasharray=\"" +
                          kDashes[static_cast<std::size_t>(number) % kDashes.size()] + "\"";
  const double y = kTop + 16.0 * number;
  return drawn_curve(places, how) +
         drawn_line(kWidth - kPlotRight + 10, y - 4, kWidth - kPlotRight + 34, y - 4,
                    how + " stroke-width=\"2\"") +
         drawn_text(kWidth - kPlotRight + 40, y, "start", name);
}

}  // namespace

// A bar a contestant, as long as its ratio to the base; its interval; a line where the base is.
std::string ratio_drawing(const RaceGroupResult& group) {
  double longest = 1;
  std::size_t rows = 0;
  for (const RaceRow& row : group.rows) {
    longest = std::max(longest, row.to_base.median);
    rows += row.round_s.empty() ? 0 : 1;
  }
  const double scale = (kWidth - kLeft - kRight) / longest;
  std::string out = drawn_text(kLeft + scale, kTop - 8, "middle", group.base);
  double y = kTop;
  for (const RaceRow& row : group.rows) {
    if (row.round_s.empty()) continue;
    const double end = kLeft + scale * row.to_base.median;
    out += drawn_text(kLeft - 8, y + 14, "end", row.contestant);
    out += "<rect x=\"" + at(kLeft) + "\" y=\"" + at(y + 3) + "\" width=\"" + at(end - kLeft) +
           "\" height=\"" + at(kRowHeight - 7) + "\" fill=\"" + colour_of(row.contestant) +
           "\" fill-opacity=\".75\"/>\n";
    const double low = kLeft + scale * std::min(row.to_base.low, longest);
    const double high = kLeft + scale * std::min(row.to_base.high, longest);
    out += drawn_line(low, y + 10.5, high, y + 10.5, "stroke=\"currentColor\"");
    out += drawn_text(std::max(end, high) + 5, y + 14, "start",
                      row.to_base.median > 0 ? formatted("%.2f", row.to_base.median) : "no base");
    y += kRowHeight;
  }
  out += drawn_line(kLeft + scale, kTop, kLeft + scale, y,
                    "stroke=\"currentColor\" stroke-dasharray=\"2 4\"");
  return drawing("Step time of " + group.name + " as a multiple of " + group.base + "'s",
                 kTop + kRowHeight * static_cast<double>(rows) + 8, out);
}

std::vector<ScalingSeries> scaling_series(const Race& race) {
  std::vector<ScalingSeries> all;
  for (const RaceGroupResult& group : race.groups) {
    const std::size_t space = group.name.rfind(' ');
    if (space == std::string::npos) continue;
    char* end = nullptr;
    const double along = std::strtod(group.name.c_str() + space, &end);
    const std::string series = group.name.substr(0, space);
    if (*end != 0 || !(along > 0)) continue;
    if (all.empty() || all.back().along != series)
      all.push_back({"Step time along " + series, series, {}});
    ScalingPoint point{along, {}, group.compute_limit_s};
    for (const RaceRow& row : group.rows)
      if (!row.round_s.empty()) point.step_s[row.contestant] = row.step_s.median;
    all.back().points.push_back(point);
  }
  std::erase_if(all, [](const ScalingSeries& series) { return series.points.size() < 2; });
  return all;
}

std::string scaling_drawing(const std::string& title, const std::string& along,
                            const std::vector<ScalingPoint>& points) {
  if (points.empty()) return {};
  const Plane plane = plane_of(points);
  std::map<std::string, int> names;
  for (const ScalingPoint& point : points)
    for (const auto& [name, seconds] : point.step_s) names[name] = 0;
  std::string out;
  int number = 0;
  for (auto& [name, index] : names) out += curve(plane, points, name, number++);
  for (const ScalingPoint& point : points)
    out += drawn_text(plane.x(point.along), kHeight - kBottom + 18, "middle",
                      short_number(point.along));
  for (const double seconds : {plane.low, std::sqrt(plane.low * plane.high), plane.high})
    out += drawn_text(kPlotLeft - 6, plane.y(seconds) + 4, "end", short_number(seconds * 1e3));
  out += drawn_text((kPlotLeft + kWidth - kPlotRight) / 2, kHeight - 6, "middle", along);
  out += drawn_text(kPlotLeft, kTop - 8, "end", "ms");
  return drawing(title, kHeight, out);
}

}  // namespace equigrad::reports
