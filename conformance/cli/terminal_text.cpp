#include "conformance/cli/terminal_text.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace equigrad::conformance::cli {
namespace {

constexpr std::size_t kLeastColumns = 40, kUsualColumns = 100;

std::string without_ending_spaces(const std::string& line) {
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

std::string label(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%9.4g", value);
  return text;
}

// The means of `width` parts, none of them empty.
std::vector<double> means(const std::vector<double>& values, std::size_t width) {
  std::vector<double> all;
  for (std::size_t i = 0; i < width; ++i) {
    const auto from = i * values.size() / width, to = (i + 1) * values.size() / width;
    double sum = 0;
    for (std::size_t at = from; at < to; ++at) sum += values[at];
    all.push_back(sum / static_cast<double>(to - from));
  }
  return all;
}

}  // namespace

std::size_t columns_of(int descriptor) {
  winsize size{};
  std::size_t columns = kUsualColumns;
  const char* said = std::getenv("COLUMNS");
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    columns = size.ws_col;
  else if (const long number = said == nullptr ? 0 : std::strtol(said, nullptr, 10); number > 0)
    columns = static_cast<std::size_t>(number);
  return std::max(columns, kLeastColumns);
}

std::size_t limit_of_columns(int descriptor) {
  const bool is_limited = isatty(descriptor) == 1 || std::getenv("COLUMNS") != nullptr;
  return is_limited ? columns_of(descriptor) : 0;
}

std::string drawn(const std::vector<double>& values, std::size_t width, std::size_t height) {
  const auto points = means(values, std::min(width, values.size()));
  std::vector<double> finite;
  for (const double point : points)
    if (std::isfinite(point)) finite.push_back(point);
  if (finite.size() < 3 || height < 2) return "";
  const auto [low, high] = std::minmax_element(finite.begin(), finite.end());
  std::vector<std::string> lines(height, std::string(points.size(), ' '));
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!std::isfinite(points[i])) continue;
    const double part = *high > *low ? (*high - points[i]) / (*high - *low) : 0;
    lines[static_cast<std::size_t>(std::lround(part * static_cast<double>(height - 1)))][i] = '*';
  }
  std::string text;
  for (std::size_t i = 0; i < height; ++i) {
    const std::string side = i == 0            ? label(*high)
                             : i + 1 == height ? label(*low)
                                               : std::string(label(0).size(), ' ');
    text += without_ending_spaces(side + " | " + lines[i]) + "\n";
  }
  return text;
}

}  // namespace equigrad::conformance::cli
