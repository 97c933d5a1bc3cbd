// Rooms: the table of rooms in CMakeLists.txt, and the rules for who may include whom.
//
//   equigrad_room(engine/layout NO_TORCH USES engine/error engine/config)
//
// A room is a folder with the folders below it that are no room of their own. A file of a room may
// include its room and those behind USES. `engine/error` is the header of that name, `engine` the
// other headers at the engine's root: what a user includes.
//
// Invariants: no file below engine/, reference/, reports/ and conformance/ is exempt: it belongs to
// a room, is a test (<room>/tests/, conformance/testing/), or is a program. An example is a user's
// program: it includes nothing of this tree but what is installed, <equigrad/...>. A room stands
// below all that it uses, so every arrow goes one way; a use that nothing includes is a finding
// too. Units, errors: those of tree.hpp.
// Depends on: tree.hpp.
#pragma once

#include <cstddef>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "conformance/testing/architecture/tree.hpp"

namespace equigrad::conformance::architecture {

struct Room {
  std::string name;
  bool no_torch = false;
  std::set<std::string> uses;
  std::size_t line = 0;  // in CMakeLists.txt
};

inline std::vector<Room> rooms_of(const Tree& tree) {
  std::vector<Room> rooms;
  const auto found = tree.find("CMakeLists.txt");
  if (found == tree.end()) return rooms;
  std::string row;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < found->second.size(); ++i) {
    const std::string line = found->second[i].substr(0, found->second[i].find('#'));
    if (line.starts_with("equigrad_room(")) begin = i + 1;
    if (begin == 0) continue;
    row += " " + line;
    if (line.find(')') == std::string::npos) continue;
    const auto open = row.find('(') + 1;
    std::istringstream words(row.substr(open, row.find(')') - open));
    Room room{.line = begin};
    words >> room.name;
    std::string part;
    for (std::string word; words >> word;) {
      if (word == "NO_TORCH") room.no_torch = true;
      if (word == "USES" || word == "WITH") part = word;
      if (part == "USES" && word != part) room.uses.insert(word);
    }
    rooms.push_back(room);
    row.clear();
    begin = 0;
  }
  return rooms;
}

// "" for a file of no room; "tests" and "programs" for files that belong to none.
inline std::string room_of(const std::string& path, const std::vector<Room>& rooms) {
  const std::string top = top_of(path);
  if (top == "perf" || top == "property_tests" || top == "examples") return top;
  if (is_test(path) || path.starts_with("conformance/testing/")) return "tests";
  if (path == "engine/quickstart.cpp" || path == "conformance/main.cpp") return "programs";
  std::string best;
  for (const Room& room : rooms) {
    const bool is_file = path.starts_with(room.name + ".");
    if (is_file) return room.name;
    if (path.starts_with(room.name + "/") && room.name.size() > best.size()) best = room.name;
  }
  // A folder at the root of engine/ or conformance/ without a row is not the root's own.
  if (best == top && top == "engine" && folder_of(path) != top) return {};
  return best;
}

// What `line` includes and whether in quotes; empty when it includes nothing.
inline std::string included(const std::string& line, bool& quoted) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*(["<])([^">]+)[">])re");
  std::smatch match;
  if (!std::regex_search(line, match, pattern)) return {};
  quoted = match[1] == "\"";
  return match[2];
}

inline const Room* room_named(const std::string& name, const std::vector<Room>& rooms) {
  for (const Room& room : rooms) {
    if (room.name == name) return &room;
  }
  return nullptr;
}

// Why a file of the project must not include another one of it; empty when it may.
inline std::string why_not_ours(const std::string& path, const std::string& target,
                                const std::vector<Room>& rooms) {
  const std::string from = room_of(path, rooms), to = room_of(target, rooms);
  if (from == "examples") return "an example includes <equigrad/...>, as its users do";
  const bool is_program = from == "tests" || from == "programs" || !room_named(from, rooms);
  if ((to == "perf" || to == "property_tests") && from != to && !(is_test(path) && from == to)) {
    return from + " must not include " + to;
  }
  if (to == "tests") {
    // "reference/tests/": of that room and of those below it.
    const std::string owner = target.substr(0, target.find("tests/"));
    const bool own = is_test(target) && is_test(path) && path.starts_with(owner);
    const bool shared = target.starts_with("conformance/testing/") && is_program;
    return own || shared ? "" : from + " must not include a test's " + target;
  }
  if (is_program) return {};
  if (to.empty()) return target + " is in no room";
  if (from == to || room_named(from, rooms)->uses.contains(to)) return {};
  return from + " must not include " + target;
}

// The same for headers of LibTorch.
inline std::string why_not_torch(const std::string& path, const std::string& target,
                                 const std::vector<Room>& rooms) {
  const std::string from = room_of(path, rooms);
  if (target.starts_with("torch/csrc/distributed") &&
      !((from == "engine/comm" || path.starts_with("engine/comm/tests/")) &&
        path.ends_with(".cpp"))) {
    return "only the sources of engine/comm may include c10d";
  }
  if (target.starts_with("torch/csrc/autograd") && path.starts_with("engine/") &&
      from != "engine/autograd" && from != "engine/parallel" && from != "tests") {
    return "of the engine only engine/autograd and engine/parallel may include "
           "torch/csrc/autograd";
  }
  if (target == "torch/torch.h" && is_header(path)) return "no torch/torch.h in a header";
  const Room* room = room_named(from, rooms);
  const bool is_torch =
      target.starts_with("torch/") || target.starts_with("ATen/") || target.starts_with("c10/");
  if (is_torch && room && room->no_torch) return from + " must not include LibTorch";
  return {};
}

inline Findings include_directions(const Tree& tree) {
  const auto rooms = rooms_of(tree);
  static const std::set<std::string> tops(kFolders.begin(), kFolders.end());
  Findings findings;
  std::map<std::string, std::set<std::string>> used;
  for (const auto& [path, lines] : tree) {
    if (is_source(path) && room_of(path, rooms).empty()) {
      findings.push_back(place(path, 1) + "in no room of CMakeLists.txt's table");
    }
  }
  for_each_line(tree, [&](const std::string& path, std::size_t number, const std::string& line) {
    bool quoted = false;
    const std::string target = included(line, quoted);
    if (target.empty() || room_of(path, rooms).empty()) return;
    const bool ours = tops.contains(top_of(target)) && target.find('/') != std::string::npos;
    std::string reason =
        ours ? why_not_ours(path, target, rooms) : why_not_torch(path, target, rooms);
    if (quoted && !ours && !target.starts_with("equigrad_")) {  // those are made by the build
      reason = "write \"" + target + "\" from the project root";
    }
    if (!reason.empty()) findings.push_back(place(path, number) + reason);
    if (ours) used[room_of(path, rooms)].insert(room_of(target, rooms));
  });
  std::set<std::string> above;  // rooms of the rows so far
  for (const Room& room : rooms) {
    const std::string row = place("CMakeLists.txt", room.line) + room.name;
    for (const std::string& other : room.uses) {
      if (!above.contains(other)) findings.push_back(row + " uses " + other + " before its row");
      if (!used[room.name].contains(other)) {
        findings.push_back(row + " need not use " + other + ": nothing of it is included");
      }
    }
    above.insert(room.name);
  }
  return findings;
}

}  // namespace equigrad::conformance::architecture
