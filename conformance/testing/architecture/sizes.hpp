// Sizes: how large files, functions and the whole reference may get.
//
// Invariants: as in directions.hpp.
// Units: lines, and columns, where a column is a character and not a byte.   Errors: none.
// Depends on: directions.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <regex>
#include <string>
#include <vector>

#include "conformance/testing/architecture/directions.hpp"

namespace equigrad::conformance::architecture {

constexpr size_t kHeaderLines = 150, kSourceLines = 300, kFunctionLines = 60,
                 kReferenceCodeLines = 1280;
constexpr std::ptrdiff_t kColumns = 100;

// A function that is not inside of a class begins and ends in column 1. Rows of tables and texts
// that span lines are data: they do not count.
inline void long_functions(const std::string& path, const std::vector<std::string>& lines,
                           Findings& findings) {
  static const std::regex opening(R"(^[A-Za-z].*\(.*[({,]$|^[A-Za-z].*\($)");
  static const std::regex other(R"(^(namespace|class|struct|enum|union|extern)\b|[^=]= ?\{)");
  static const std::regex row(R"(^ +\{.*\},?$)");
  static const std::regex raw(R"=(R"([a-z]*)\()=");
  size_t opened = 0, length = 0;
  std::string closing;  // of the text we are in
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    std::smatch match;
    if (closing.empty() && std::regex_search(line, match, raw))
      closing = ")" + match[1].str() + "\"";
    const bool in_text = !closing.empty() && line.find(closing) == std::string::npos;
    if (!in_text) closing.clear();
    if (in_text || std::regex_search(line, row)) continue;
    if (opened == 0 && std::regex_search(line, opening) && !std::regex_search(line, other)) {
      opened = i + 1;
      length = 0;
    }
    ++length;
    if (opened == 0 || line.empty() || line[0] != '}') continue;
    if (length > kFunctionLines) {
      findings.push_back(place(path, opened) + "a function of " + std::to_string(length) +
                         " lines, at most 60");
    }
    opened = 0;
  }
}

// Without blank lines and comments: the reference's comments are its equations.
inline size_t code_lines(const std::vector<std::string>& lines) {
  return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    const auto first = line.find_first_not_of(' ');
    return first != std::string::npos && line.compare(first, 2, "//") != 0;
  }));
}

inline Findings sizes(const Tree& tree) {
  Findings findings;
  size_t reference = 0;
  for (const auto& [path, lines] : tree) {
    const size_t limit = is_header(path) ? kHeaderLines : kSourceLines;
    if (top_of(path) == "reference") reference += code_lines(lines);
    if (lines.size() > limit) {
      findings.push_back(place(path, lines.size()) + "at most " + std::to_string(limit) + " lines");
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      // The bytes that continue a character in UTF-8 are no columns.
      const auto columns = std::count_if(lines[i].begin(), lines[i].end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u;
      });
      if (columns > kColumns) findings.push_back(place(path, i + 1) + "over 100 columns");
    }
    long_functions(path, lines, findings);
  }
  if (reference > kReferenceCodeLines) {
    findings.push_back("reference: " + std::to_string(reference) + " lines of code, at most " +
                       std::to_string(kReferenceCodeLines));
  }
  return findings;
}

}  // namespace equigrad::conformance::architecture
