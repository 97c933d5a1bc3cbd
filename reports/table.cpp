#include "reports/table.hpp"

#include <algorithm>
#include <numeric>

#include "reports/text.hpp"

namespace equigrad::reports {

std::vector<std::size_t> widths_of(const std::vector<TableRow>& rows) {
  std::vector<std::size_t> widths;
  for (const TableRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  return widths;
}

std::size_t line_width(const std::vector<TableRow>& rows) {
  const auto widths = widths_of(rows);
  const std::size_t between = widths.empty() ? 0 : 2 * (widths.size() - 1);
  return std::accumulate(widths.begin(), widths.end(), between);
}

std::vector<std::string> narrow(std::vector<TableRow>& rows, std::size_t columns,
                                const std::vector<std::string>& order) {
  std::vector<std::string> left_out;
  for (const std::string& name : order) {
    if (columns == 0 || line_width(rows) <= columns) break;
    const auto found = std::find(rows[0].begin(), rows[0].end(), name);
    if (found == rows[0].end()) continue;
    const auto at = found - rows[0].begin();
    for (TableRow& row : rows)
      if (at < static_cast<std::ptrdiff_t>(row.size())) row.erase(row.begin() + at);
    left_out.push_back(name);
  }
  return left_out;
}

std::vector<std::string> aligned_lines(const std::vector<TableRow>& rows,
                                       const std::vector<std::string>& left) {
  const auto widths = widths_of(rows);
  const auto is_left = [&](std::size_t i) {
    return i == 0 ||
           (i < rows[0].size() && std::find(left.begin(), left.end(), rows[0][i]) != left.end());
  };
  std::vector<std::string> lines;
  for (const TableRow& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string spaces(widths[i] - width_of(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (is_left(i) ? row[i] + spaces : spaces + row[i]);
    }
    lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
  }
  return lines;
}

std::string aligned(const std::vector<TableRow>& rows, const std::vector<std::string>& left) {
  std::string text;
  for (const std::string& line : aligned_lines(rows, left)) text += line + "\n";
  return text;
}

}  // namespace equigrad::reports
