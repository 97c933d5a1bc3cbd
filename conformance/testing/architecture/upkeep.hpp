// Upkeep: what every file owes its reader.
//
// Invariants: as in tree.hpp.
// Units: lines count from 1.   Errors: none.
// Depends on: rooms.hpp.
#pragma once

#include <algorithm>
#include <regex>
#include <set>
#include <string>

#include "conformance/testing/architecture/rooms.hpp"

namespace equigrad::conformance::architecture {

// Every header opens with a room statement, which says at least what the header depends on.
inline Findings room_statements(const Tree& tree) {
  Findings findings;
  for (const auto& [path, lines] : tree) {
    if (!is_header(path)) continue;
    bool depends = false;
    size_t i = 0;
    for (; i < lines.size() && lines[i].starts_with("//"); ++i) {
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
// includes its header or, where it has none, a header of its room.
inline Findings untested_sources(const Tree& tree) {
  const auto rooms = rooms_of(tree);
  std::set<std::string> tested;
  for_each_line(tree, [&](const std::string& path, std::size_t, const std::string& line) {
    if (!path.ends_with("_test.cpp") && !path.ends_with("_properties.cpp")) return;
    bool quoted = false;
    const std::string target = included(line, quoted);
    tested.insert(target);
    if (!target.empty()) tested.insert(room_of(target, rooms) + "/");
  });
  Findings findings;
  for (const auto& [path, lines] : tree) {
    if (!path.starts_with("engine/") || !path.ends_with(".cpp")) continue;
    const std::string room = room_of(path, rooms);
    if (room == "tests" || room == "programs") continue;
    const std::string stem = path.substr(0, path.size() - 4);
    const std::string test =
        folder_of(path) + "/tests" + stem.substr(stem.rfind('/')) + "_test.cpp";
    const bool has_header = tree.contains(stem + ".hpp");
    const bool by_others = tested.contains(has_header ? stem + ".hpp" : room + "/");
    if (tree.contains(test) || by_others) continue;
    findings.push_back(place(path, 1) + "no test: expected " + test);
  }
  return findings;
}

}  // namespace equigrad::conformance::architecture
