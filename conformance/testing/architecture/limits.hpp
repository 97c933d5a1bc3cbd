// Limits: how much one class, function or file may hold.
//
// Invariants: as in tree.hpp. What is limited is what a reader must keep in mind at once: members,
// public functions, constructor parameters, states that are booleans. A struct of values has no
// limit on its members. An interface that mirrors another API call by call may be as wide as that.
// Units: lines, and columns, where a column is a character and not a byte.
// Errors: none.
// Depends on: scan.hpp, tree.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "conformance/testing/architecture/scan.hpp"
#include "conformance/testing/architecture/tree.hpp"

namespace equigrad::conformance::architecture {

constexpr std::size_t kFileLines = 500, kFunctionLines = 60, kMembers = 12, kPublicFunctions = 10,
                      kConstructorParameters = 5, kBooleans = 2, kReferenceCodeLines = 1500;
constexpr std::ptrdiff_t kColumns = 100;

// Classes that mirror an API of others, call by call, and whose: their public functions are as many
// as that has.
inline const std::set<std::string> kMirrors = {
    // DeepSpeedEngine, and the reference's and a contract case's side of it
    "Engine", "Stepper", "Play", "EnginePlay", "ReferenceRank",
    // deepspeed.utils' safe_get_* and safe_set_*
    "Access",
    // c10d::Backend
    "Communicator", "BackendCommunicator", "StagedCommunicator", "ForwardingCommunicator",
    "CountingCommunicator", "RecordedWire", "EmptyWire"};

inline std::string over(const std::string& what, std::size_t count, std::size_t limit) {
  return std::to_string(count) + " " + what + ", at most " + std::to_string(limit);
}

inline Findings class_limits(const Tree& tree) {
  Findings findings;
  for (const auto& [path, lines] : tree) {
    if (!is_source(path)) continue;
    const Scanned scanned = scan(lines);
    for (const ScannedFunction& function : scanned.functions) {
      if (function.lines <= kFunctionLines) continue;
      findings.push_back(place(path, function.line) + "a function of " +
                         over("lines", function.lines, kFunctionLines));
    }
    for (const ScannedClass& one : scanned.classes) {
      const std::string begin = place(path, one.line) + one.name + " has ";
      const auto check = [&](const char* what, std::size_t count, std::size_t limit) {
        if (count > limit) findings.push_back(begin + over(what, count, limit));
      };
      check("constructor parameters", one.constructor_parameters, kConstructorParameters);
      if (one.is_struct) continue;
      check("members", one.members, kMembers);
      check("booleans", one.booleans, kBooleans);
      if (!kMirrors.contains(one.name)) {
        check("public functions", one.public_functions.size(), kPublicFunctions);
      }
    }
  }
  return findings;
}

// Without blank lines and comments: the reference's comments are its equations.
inline std::size_t code_lines(const std::vector<std::string>& lines) {
  return static_cast<std::size_t>(
      std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
        const auto first = line.find_first_not_of(' ');
        return first != std::string::npos && line.compare(first, 2, "//") != 0;
      }));
}

inline Findings file_limits(const Tree& tree) {
  Findings findings;
  std::size_t reference = 0;
  for (const auto& [path, lines] : tree) {
    if (!is_source(path)) continue;
    if (top_of(path) == "reference" && !is_test(path)) reference += code_lines(lines);
    if (lines.size() > kFileLines) {
      findings.push_back(place(path, lines.size()) + "at most " + std::to_string(kFileLines) +
                         " lines");
    }
    for (std::size_t i = 0; i < lines.size(); ++i) {
      // The bytes that continue a character in UTF-8 are no columns.
      const auto columns = std::count_if(lines[i].begin(), lines[i].end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u;
      });
      if (columns > kColumns) findings.push_back(place(path, i + 1) + "over 100 columns");
    }
  }
  if (reference > kReferenceCodeLines) {
    findings.push_back("reference: " + over("lines of code", reference, kReferenceCodeLines));
  }
  return findings;
}

}  // namespace equigrad::conformance::architecture
