#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "reports/comparison.hpp"
#include "reports/document.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr double kWidth = kDrawingWidth, kHeight = 300;
constexpr double kLeft = 64, kRight = 24, kTop = 14, kBottom = 40;  // of the frame
// Blue and vermilion, apart for every common colour blindness; B is dashed as well.
constexpr std::array<const char*, 2> kColours = {"#1f6f9f", "#c7482b"};
constexpr std::array<const char*, 2> kDashes = {"", " stroke-dasharray=\"5 3\""};
constexpr const char* kViolet = "#8461b3";

struct Frame {
  double last_step = 1, low = 0, high = 1;

  double x(double step) const { return kLeft + (kWidth - kLeft - kRight) * step / last_step; }
  double y(double value) const {
    return kTop + (kHeight - kTop - kBottom) * (high - value) / (high - low);
  }
};

// 1, 2 or 5 times a power of ten, so that there are about five of them.
double tick_distance(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 5)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (range / (factor * power) <= 6) return factor * power;
  return 10 * power;
}

std::string tick_text(double value, double distance) {
  const int digits = std::max(0, static_cast<int>(-std::floor(std::log10(distance) + 1e-9)));
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string axes(const Frame& frame, const std::string& name) {
  const std::string thin = "stroke=\"currentColor\" stroke-opacity=\".18\"";
  std::string out;
  const double up = tick_distance(frame.high - frame.low);
  for (double value = std::ceil(frame.low / up) * up; value <= frame.high; value += up) {
    out += drawn_line(kLeft, frame.y(value), kWidth - kRight, frame.y(value), thin);
    out += drawn_text(kLeft - 6, frame.y(value) + 4, "end", tick_text(value, up));
  }
  const double along = tick_distance(frame.last_step);
  for (double step = 0; step <= frame.last_step; step += along)
    out += drawn_text(frame.x(step), kHeight - kBottom + 16, "middle", tick_text(step, along));
  out += drawn_text((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", "optimizer steps");
  return out + "<text transform=\"rotate(-90)\" x=\"" + at(-(kTop + kHeight - kBottom) / 2) +
         "\" y=\"12\" text-anchor=\"middle\" fill=\"currentColor\">" + escape_xml(name) +
         "</text>\n";
}

// The interval as an area, as far as it is inside of the frame, the mean as a line; a gap where
// there is no finite number. `estimate`: of a point.
std::string series(const Frame& frame, const std::vector<CurvePoint>& curve, const auto& estimate,
                   const char* colour, const char* dash) {
  std::string means, above, below;
  for (const CurvePoint& point : curve) {
    const Estimate& value = estimate(point);
    if (!std::isfinite(value.mean)) continue;
    const std::string x = at(frame.x(static_cast<double>(point.step)));
    means += x + "," + at(frame.y(value.mean)) + " ";
    if (!std::isfinite(value.low) || !std::isfinite(value.high)) continue;
    const auto y = [&](double end) { return at(frame.y(std::clamp(end, frame.low, frame.high))); };
    above += x + "," + y(value.high) + " ";
    below = x + "," + y(value.low) + " " + below;
  }
  return "<polygon points=\"" + above + below + "\" fill=\"" + colour +
         "\" fill-opacity=\".2\"/>\n" +
         drawn_curve(means, std::string("stroke=\"") + colour + "\"" + dash);
}

// Around the finite ones of the values, of which `start` is one, with some room.
Frame frame_around(const std::vector<CurvePoint>& curve, double start,
                   const std::vector<double>& values) {
  Frame frame{static_cast<double>(curve.back().step), start, start};
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    frame.low = std::min(frame.low, value);
    frame.high = std::max(frame.high, value);
  }
  const double room = (frame.high - frame.low) * 0.04;
  frame.low -= room > 0 ? room : 0.5;
  frame.high += room > 0 ? room : 0.5;
  return frame;
}

}  // namespace

std::string loss_drawing(const Comparison& comparison) {
  if (comparison.curve.empty()) return {};
  std::vector<double> means;  // at the start an interval may be wider than all that follows
  for (const CurvePoint& point : comparison.curve)
    for (const Estimate& estimate : point.each) means.push_back(estimate.mean);
  const double start = comparison.curve.back().each[0].mean;
  const Frame frame = frame_around(comparison.curve, std::isfinite(start) ? start : 0, means);
  std::string out = axes(frame, "loss (nats)");
  for (std::size_t i = 0; i < 2; ++i) {
    const double y = kTop + 14 + 18 * static_cast<double>(i), x = kWidth - 250;
    const auto estimate = [i](const CurvePoint& point) { return point.each[i]; };
    out += series(frame, comparison.curve, estimate, kColours[i], kDashes[i]);
    out +=
        drawn_line(x, y - 4, x + 28, y - 4,
                   std::string("stroke=\"") + kColours[i] + "\" stroke-width=\"2\"" + kDashes[i]);
    out += drawn_text(x + 34, y, "start",
                      std::string(i == 0 ? "A  " : "B  ") + comparison.configurations[i].name);
  }
  return drawing("Loss of A and of B by step", kHeight, out);
}

std::string difference_drawing(const Comparison& comparison) {
  if (comparison.curve.empty()) return {};
  std::vector<double> values = {-comparison.margin, comparison.margin};
  for (const CurvePoint& point : comparison.curve)
    values.insert(values.end(), {point.difference.low, point.difference.high});
  const Frame frame = frame_around(comparison.curve, 0, values);
  std::string out = axes(frame, "B - A (nats)");
  out += drawn_line(kLeft, frame.y(0), kWidth - kRight, frame.y(0), "stroke=\"currentColor\"");
  for (const double margin : {-comparison.margin, comparison.margin})
    out += drawn_line(kLeft, frame.y(margin), kWidth - kRight, frame.y(margin),
                      "stroke=\"currentColor\" stroke-dasharray=\"2 4\"");
  out += drawn_text(kWidth - kRight - 4, frame.y(comparison.margin) - 5, "end", "margin");
  const auto estimate = [](const CurvePoint& point) { return point.difference; };
  out += series(frame, comparison.curve, estimate, kViolet, "");
  return drawing("Difference of the paired losses by step, and the margin", kHeight, out);
}

}  // namespace equigrad::reports
