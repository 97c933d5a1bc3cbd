// Tree: the project's sources as text, for the rules of the architecture test.
//
// Invariants: a rule reads a Tree and nothing else, so that a test can plant a fault in one. Every
// finding reads "file:line: what is wrong".
// Units: lines count from 1.
// Errors: std::filesystem::filesystem_error for a folder that cannot be read.
// Depends on: the C++ standard library only; header-only, so the test links no library.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace equigrad::conformance::architecture {

using Tree = std::map<std::string, std::vector<std::string>>;  // path from the root -> lines
using Findings = std::vector<std::string>;                     // "file:line: what is wrong"

inline const std::vector<std::string> kFolders = {
    "engine", "reference", "conformance", "reports", "property_tests", "perf", "examples"};

inline std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The sources and headers below the top folders, and the CMakeLists.txt that has the table of
// rooms.
inline Tree read_tree(const std::filesystem::path& root) {
  Tree tree;
  for (const std::string& folder : kFolders) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string kind = entry.path().extension();
      if (kind != ".hpp" && kind != ".cpp" && kind != ".cu") continue;
      tree[std::filesystem::relative(entry.path(), root).generic_string()] = lines_of(entry.path());
    }
  }
  if (std::filesystem::exists(root / "CMakeLists.txt")) {
    tree["CMakeLists.txt"] = lines_of(root / "CMakeLists.txt");
  }
  return tree;
}

inline bool is_header(const std::string& path) { return path.ends_with(".hpp"); }
inline bool is_source(const std::string& path) { return path != "CMakeLists.txt"; }
inline bool is_test(const std::string& path) { return path.find("/tests/") != std::string::npos; }

// "engine/loss/divisors.hpp" -> "engine/loss"; "engine/error.hpp" -> "engine".
inline std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
inline std::string top_of(const std::string& path) { return path.substr(0, path.find('/')); }

// Calls visit(path, line number from 1, line) for every line of the sources.
template <class Visit>
void for_each_line(const Tree& tree, const Visit& visit) {
  for (const auto& [path, lines] : tree) {
    if (!is_source(path)) continue;
    for (std::size_t i = 0; i < lines.size(); ++i) visit(path, i + 1, lines[i]);
  }
}

inline std::string place(const std::string& path, std::size_t line) {
  return path + ":" + std::to_string(line) + ": ";
}

}  // namespace equigrad::conformance::architecture
