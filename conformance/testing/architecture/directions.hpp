// Directions: the tree as text, and the rules for who may include whom.
//
//   reports    engine    reference        include nothing of each other
//        |        |        |
//        +--- conformance -+              where they meet
//             |          |
//      property_tests   perf
//
// Invariants: a rule reads a Tree and nothing else, so that a test can plant a fault in one. Every
//   finding reads "file:line: what is wrong".
// Units: lines count from 1.   Errors: std::filesystem::filesystem_error for a folder it cannot
// read. Depends on: the C++ standard library only; header-only, so the test links no library.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace equigrad::conformance::architecture {

using Tree = std::map<std::string, std::vector<std::string>>;  // path from the root -> lines
using Findings = std::vector<std::string>;                     // "file:line: what is wrong"

inline const std::vector<std::string> kFolders = {"engine",  "reference",      "conformance",
                                                  "reports", "property_tests", "perf"};
inline Tree read_tree(const std::filesystem::path& root) {
  Tree tree;
  for (const std::string& folder : kFolders) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string kind = entry.path().extension();
      if (kind != ".hpp" && kind != ".cpp" && kind != ".cu") continue;
      auto& lines = tree[std::filesystem::relative(entry.path(), root).generic_string()];
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) lines.push_back(line);
    }
  }
  return tree;
}

inline bool starts(const std::string& text, const std::string& with) {
  return text.rfind(with, 0) == 0;
}
inline bool ends(const std::string& text, const std::string& with) {
  return text.size() >= with.size() && text.substr(text.size() - with.size()) == with;
}
inline bool is_header(const std::string& path) { return ends(path, ".hpp"); }

// "engine/loss/divisors.hpp" -> "engine/loss"; "engine/error.hpp" -> "engine".
inline std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
inline std::string top_of(const std::string& path) { return path.substr(0, path.find('/')); }

// Calls visit(path, line number from 1, line) for every line.
template <class Visit>
void for_each_line(const Tree& tree, const Visit& visit) {
  for (const auto& [path, lines] : tree) {
    for (size_t i = 0; i < lines.size(); ++i) visit(path, i + 1, lines[i]);
  }
}

inline std::string place(const std::string& path, size_t line) {
  return path + ":" + std::to_string(line) + ": ";
}

// What `line` includes and whether in quotes; empty when it includes nothing.
inline std::string included(const std::string& line, bool& quoted) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*(["<])([^">]+)[">])re");
  std::smatch match;
  if (!std::regex_search(line, match, pattern)) return {};
  quoted = match[1] == "\"";
  return match[2];
}

// Whether a file in folder `from` may include `to` of the project; both within the engine.
inline bool engine_allows(const std::string& from, const std::string& to) {
  static const std::set<std::string> stations = {
      "engine/loss",      "engine/gradient",  "engine/bucket", "engine/shard",
      "engine/optimizer", "engine/parameter", "engine/profile"};
  static const std::set<std::string> services = {"engine/layout", "engine/comm", "engine/trace",
                                                 "engine/kernels"};
  static const std::set<std::string> values = {
      "engine/config/config.hpp", "engine/config/precision.hpp",
      "engine/error.hpp",         "engine/layout/stage.hpp",
      "engine/phase.hpp",         "engine/config/suggest.hpp"};
  const std::string folder = folder_of(to);
  if (from == "engine" || folder == from) return true;
  // The profiler leaves out what the engine does for itself.
  if (from == "engine/profile" && to == "engine/autograd/operator_observer.hpp") return true;
  if (from == "engine/layout") return to == "engine/error.hpp" || to == "engine/config/suggest.hpp";
  return values.contains(to) || (stations.contains(from) && services.contains(folder)) ||
         (services.contains(from) && services.contains(folder));
}

// Why `path` must not include `target`; empty when it may.
inline std::string why_not(const std::string& path, const std::string& target, bool quoted) {
  static const std::map<std::string, std::set<std::string>> may = {
      {"engine", {"engine"}},
      {"reference", {"reference"}},
      {"reports", {"reports"}},
      {"conformance", {"engine", "reference", "reports", "conformance"}},
      {"property_tests", {"engine", "reference", "reports", "conformance", "property_tests"}},
      {"perf", {"engine", "reference", "reports", "conformance", "perf"}}};
  const std::string top = top_of(path), folder = folder_of(path), to = top_of(target);
  const bool is_ours = may.contains(to) && target != to;
  if (is_ours && !may.at(top).contains(to)) return top + " must not include " + to;
  if (is_ours && top == "engine" && !engine_allows(folder, target)) {
    return folder + " must not include " + target;
  }
  if (is_ours && folder == "conformance/oracle" && folder_of(target) != folder) {
    return "the oracle must not include what it judges";
  }
  if (target.find("torch/csrc/distributed") != std::string::npos &&
      !(folder == "engine/comm" && ends(path, ".cpp"))) {
    return "only the sources of engine/comm may include c10d";
  }
  const bool is_torch =
      starts(target, "torch/") || starts(target, "ATen/") || starts(target, "c10/");
  if (is_torch && (top == "reports" || folder == "engine/layout" || folder == "engine/schedule")) {
    return folder + " must not include LibTorch";
  }
  if (target == "torch/torch.h" && is_header(path)) return "no torch/torch.h in a header";
  if (quoted && !is_ours && target != "equigrad_build_info.hpp") {
    return "write \"" + target + "\" from the project root";
  }
  return {};
}

inline Findings include_directions(const Tree& tree) {
  Findings findings;
  for_each_line(tree, [&](const std::string& path, size_t number, const std::string& line) {
    bool quoted = false;
    const std::string target = included(line, quoted);
    if (target.empty()) return;
    const std::string reason = why_not(path, target, quoted);
    if (!reason.empty()) findings.push_back(place(path, number) + reason);
  });
  return findings;
}

}  // namespace equigrad::conformance::architecture
