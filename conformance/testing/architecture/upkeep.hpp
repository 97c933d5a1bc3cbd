// Upkeep: what every file owes its reader.
//
// Invariants: as in directions.hpp.
// Units: lines count from 1.   Errors: none.
// Depends on: directions.hpp.
#pragma once

#include <algorithm>
#include <regex>
#include <set>
#include <string>

#include "conformance/testing/architecture/directions.hpp"

namespace equigrad::conformance::architecture {

// Every header opens with a room statement, which says at least what the header depends on.
inline Findings room_statements(const Tree& tree) {
  Findings findings;
  for (const auto& [path, lines] : tree) {
    if (!is_header(path)) continue;
    bool depends = false;
    size_t i = 0;
    for (; i < lines.size() && starts(lines[i], "//"); ++i) {
      depends = depends || lines[i].find("Depends on") != std::string::npos;
    }
    if (i == 0)
      findings.push_back(place(path, 1) + "a header opens with its room statement");
    else if (!depends)
      findings.push_back(place(path, i) + "the room statement lacks \"Depends on\"");
    if (std::find(lines.begin(), lines.end(), "#pragma once") == lines.end()) {
      findings.push_back(place(path, 1) + "no #pragma once");
    }
  }
  return findings;
}

// The patterns are written in two pieces, so that this file does not contain what it forbids.
inline Findings forbidden_words(const Tree& tree) {
  static const std::regex tolerance(
      "_NE"
      "AR\\b|allcl"
      "ose|iscl"
      "ose|\\brt"
      "ol\\b|\\bat"
      "ol\\b|"
      "FLOAT"
      "_EQ|DOUBLE"
      "_EQ|Float"
      "Eq\\(|Double"
      "Eq\\(");
  static const std::regex unfinished(
      "\\bTO"
      "DO\\b|\\bFIX"
      "ME\\b|GTEST_SK"
      "IP|DISABLED"
      "_");
  static const std::regex machine(
      "[\"' ]/(wo"
      "rk|ho"
      "me|ro"
      "ot)/");
  Findings findings;
  for_each_line(tree, [&](const std::string& path, size_t number, const std::string& line) {
    // What others compare by is shown beside our verdicts, and has no say in them.
    const bool is_of_others = path.starts_with("conformance/oracle/other_rules");
    if (!is_of_others && std::regex_search(line, tolerance))
      findings.push_back(place(path, number) + "a tolerance");
    if (std::regex_search(line, unfinished)) findings.push_back(place(path, number) + "unfinished");
    if (std::regex_search(line, machine))
      findings.push_back(place(path, number) + "a machine's path");
  });
  return findings;
}

// engine/loss/divisors.cpp is tested by engine/loss/tests/divisors_test.cpp, or by a test that
// includes engine/loss/divisors.hpp or, where it has no header, a header of its folder.
inline Findings untested_sources(const Tree& tree) {
  std::set<std::string> tested;
  for_each_line(tree, [&](const std::string& path, size_t, const std::string& line) {
    if (!ends(path, "_test.cpp") && !ends(path, "_properties.cpp")) return;
    bool quoted = false;
    const std::string target = included(line, quoted);
    tested.insert(target);
    if (!target.empty()) tested.insert(folder_of(target) + "/");
  });
  Findings findings;
  for (const auto& [path, lines] : tree) {
    if (!starts(path, "engine/") || !ends(path, ".cpp")) continue;
    const std::string stem = path.substr(0, path.size() - 4);
    const bool has_header = tree.contains(stem + ".hpp");
    const bool mirrored = tree.contains("conformance" + stem.substr(6) + "_test.cpp");
    if (mirrored || tested.contains(has_header ? stem + ".hpp" : folder_of(path) + "/")) continue;
    findings.push_back(place(path, 1) + "no test: expected conformance" + stem.substr(6) +
                       "_test.cpp");
  }
  return findings;
}

}  // namespace equigrad::conformance::architecture
