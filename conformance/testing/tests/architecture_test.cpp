// The rules of the tree hold for the tree, and each of them sees the fault it is there for.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "conformance/testing/architecture/limits.hpp"
#include "conformance/testing/architecture/rooms.hpp"
#include "conformance/testing/architecture/upkeep.hpp"

namespace equigrad::conformance::architecture {
namespace {

testing::AssertionResult none(const Findings& findings) {
  if (findings.empty()) return testing::AssertionSuccess();
  auto result = testing::AssertionFailure() << findings.size() << " findings";
  for (const std::string& finding : findings) result << "\n  " << finding;
  return result;
}

const Tree& our_tree() {
  static const Tree tree = read_tree(EQUIGRAD_SOURCE_DIR);
  return tree;
}

TEST(Architecture, FoldersAreThereAndTheirSizesAreSeen) {
  for (const std::string& folder : kFolders) {
    size_t lines = 0, files = 0;
    for (const auto& [path, text] : our_tree()) {
      if (is_source(path) && top_of(path) == folder) lines += text.size(), ++files;
    }
    std::cout << folder << ": " << lines << " lines in " << files << " files\n";
    EXPECT_GT(files, 0u) << folder;
  }
}

TEST(Architecture, IncludesGoInOneDirection) { EXPECT_TRUE(none(include_directions(our_tree()))); }
TEST(Architecture, ConceptsAreSmall) { EXPECT_TRUE(none(class_limits(our_tree()))); }
TEST(Architecture, FilesAreSmall) { EXPECT_TRUE(none(file_limits(our_tree()))); }
TEST(Architecture, HeadersOpenWithARoomStatement) {
  EXPECT_TRUE(none(room_statements(our_tree())));
}
TEST(Architecture, NothingForbiddenIsWritten) { EXPECT_TRUE(none(forbidden_words(our_tree()))); }
TEST(Architecture, EverySourceOfTheEngineHasATest) {
  EXPECT_TRUE(none(untested_sources(our_tree())));
}

// The one finding of `rule` in a tree of this one file, or how many there are.
template <class Rule>
std::string finding(Rule rule, const std::string& path, std::vector<std::string> lines) {
  const Findings findings = rule(Tree{{path, std::move(lines)}});
  return findings.size() == 1 ? findings[0] : std::to_string(findings.size()) + " findings";
}

// Our table of rooms and a file that includes `targets`, one a line: what is found in it.
Findings of_includes(const std::string& path, const std::vector<std::string>& targets) {
  Tree tree = {{"CMakeLists.txt", our_tree().at("CMakeLists.txt")}};
  for (const std::string& target : targets) {
    const bool ours = !target.starts_with("torch/") && !target.starts_with("ATen/");
    tree[path].push_back("#include " + (ours ? '"' + target + '"' : '<' + target + '>'));
  }
  Findings result;
  for (const std::string& one : include_directions(tree)) {
    if (one.starts_with(path + ":")) result.push_back(one.substr(path.size() + 1));
  }
  return result;
}

std::string of_include(const std::string& path, const std::string& target) {
  const Findings findings = of_includes(path, {target});
  return findings.empty() ? "" : findings.front();
}

// A header of every room.
std::map<std::string, std::string> headers_of(const std::vector<Room>& rooms) {
  std::map<std::string, std::string> headers;
  for (const auto& [path, lines] : our_tree()) {
    if (is_header(path)) headers.emplace(room_of(path, rooms), path);
  }
  return headers;
}

TEST(ArchitectureRules, AForbiddenIncludeIsSeenInEveryRoom) {
  const auto rooms = rooms_of(our_tree());
  ASSERT_GE(rooms.size(), 30u);
  const auto headers = headers_of(rooms);
  for (const Room& room : rooms) {
    std::vector<std::string> targets;
    Findings wanted;
    for (const Room& other : rooms) {
      ASSERT_TRUE(headers.contains(other.name)) << other.name;
      targets.push_back(headers.at(other.name));
      if (other.name != room.name && !room.uses.contains(other.name))
        wanted.push_back(std::to_string(targets.size()) + ": " + room.name + " must not include " +
                         targets.back());
    }
    targets.push_back("perf/race/race.hpp");
    wanted.push_back(std::to_string(targets.size()) + ": " + room.name + " must not include perf");
    EXPECT_EQ(
        of_includes(room.name == "engine/error" ? "engine/error.hpp" : room.name + "/planted.cpp",
                    targets),
        wanted);
  }
}

TEST(ArchitectureRules, AForbiddenIncludePlantedInATreeOnDiskIsSeen) {
  std::string root = (std::filesystem::temp_directory_path() / "equigrad-tree-XXXXXX").string();
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  std::filesystem::create_directories(root + "/reference/data");
  std::filesystem::create_directories(root + "/build/engine");
  std::ofstream(root + "/CMakeLists.txt") << "equigrad_room(engine)\nequigrad_room(reference)\n";
  std::ofstream(root + "/reference/good.cpp") << "#include \"reference/model.hpp\"\n";
  std::ofstream(root + "/build/engine/ignored.cpp") << "#include \"reference/model.hpp\"\n";
  std::ofstream(root + "/reference/data/notes.md") << "#include \"engine/engine.hpp\"\n";
  EXPECT_TRUE(none(include_directions(read_tree(root))));
  std::ofstream(root + "/reference/bad.cpp") << "  # include \"engine/engine.hpp\"  // why not\n";
  EXPECT_EQ(include_directions(read_tree(root)),
            Findings{"reference/bad.cpp:1: reference must not include engine/engine.hpp"});
  std::filesystem::remove_all(root);
}

TEST(ArchitectureRules, TheTableOfRoomsIsTrue) {
  Tree tree = {{"CMakeLists.txt",
                {"equigrad_room(engine/a NO_TORCH)", "# equigrad_room(engine/c)",
                 "equigrad_room(engine/b USES", "  engine/a  # why", "  WITH fmt::fmt)"}},
               {"engine/b/x.cpp", {"#include \"engine/a/x.hpp\""}}};
  EXPECT_TRUE(none(include_directions(tree)));
  tree["engine/b/x.cpp"] = {};
  EXPECT_EQ(
      include_directions(tree),
      Findings{"CMakeLists.txt:3: engine/b need not use engine/a: nothing of it is included"});
  tree["engine/b/x.cpp"] = {"#include \"engine/a/x.hpp\""};
  std::swap(tree["CMakeLists.txt"][0], tree["CMakeLists.txt"][1]);
  tree["CMakeLists.txt"].push_back("equigrad_room(engine/a)");
  tree["CMakeLists.txt"].erase(tree["CMakeLists.txt"].begin() + 1);
  EXPECT_EQ(include_directions(tree),
            Findings{"CMakeLists.txt:2: engine/b uses engine/a before its row"});
  tree["engine/d/x.hpp"] = {};
  EXPECT_EQ(include_directions(tree).front(),
            "engine/d/x.hpp:1: in no room of CMakeLists.txt's table");
}

TEST(ArchitectureRules, TestsMaySeeAllAndNobodySeesTests) {
  EXPECT_EQ(of_include("engine/bucket/tests/a_test.cpp", "reference/norm.hpp"), "");
  EXPECT_EQ(of_include("engine/bucket/tests/a_test.cpp", "engine/bucket/tests/queue_alone.hpp"),
            "");
  EXPECT_EQ(of_include("engine/shard/tests/a_test.cpp", "engine/bucket/tests/queue_alone.hpp"),
            "1: tests must not include a test's engine/bucket/tests/queue_alone.hpp");
  EXPECT_EQ(of_include("engine/bucket/a.cpp", "engine/bucket/tests/queue_alone.hpp"),
            "1: engine/bucket must not include a test's engine/bucket/tests/queue_alone.hpp");
  EXPECT_EQ(of_include("engine/bucket/a.cpp", "conformance/testing/sample.hpp"),
            "1: engine/bucket must not include a test's conformance/testing/sample.hpp");
  EXPECT_EQ(of_include("perf/a.cpp", "property_tests/numbers.hpp"),
            "1: perf must not include property_tests");
  EXPECT_EQ(of_include("examples/a/a.cpp", "engine/engine.hpp"),
            "1: an example includes <equigrad/...>, as its users do");
  EXPECT_EQ(of_include("examples/a/a.cpp", "torch/torch.h"), "");
}

TEST(ArchitectureRules, LibrariesStayWhereTheyBelong) {
  const std::string c10d = "torch/csrc/distributed/c10d/Work.hpp";
  EXPECT_EQ(of_include("engine/comm/gloo.cpp", c10d), "");
  EXPECT_EQ(of_include("engine/comm/tests/mesh_test.cpp", c10d), "");
  for (const std::string path :
       {"engine/comm/a.hpp", "engine/core/engine.cpp", "conformance/cli/a.cpp"}) {
    EXPECT_EQ(of_include(path, c10d), "1: only the sources of engine/comm may include c10d");
  }
  const std::string autograd = "torch/csrc/autograd/variable.h";
  EXPECT_EQ(of_include("engine/autograd/a.cpp", autograd), "");
  EXPECT_EQ(of_include("engine/parameter/a.cpp", autograd),
            "1: of the engine only engine/autograd and engine/parallel may include "
            "torch/csrc/autograd");
  for (const std::string room : {"reports", "engine/layout", "engine/schedule", "engine/memory"}) {
    EXPECT_EQ(of_include(room + "/a.cpp", "ATen/ATen.h"),
              "1: " + room + " must not include LibTorch");
  }
  EXPECT_EQ(of_include("engine/core/a.hpp", "torch/torch.h"), "1: no torch/torch.h in a header");
  EXPECT_EQ(of_include("engine/core/a.cpp", "torch/torch.h"), "");
  EXPECT_EQ(of_include("engine/loss/a.cpp", "divisors.hpp"),
            "1: write \"divisors.hpp\" from the project root");
}

TEST(ArchitectureRules, FilesAreLimited) {
  const auto lines = [](size_t count) { return std::vector<std::string>(count, "int x;"); };
  EXPECT_EQ(finding(file_limits, "engine/a.cpp", lines(500)), "0 findings");
  EXPECT_EQ(finding(file_limits, "engine/a.cu", lines(501)), "engine/a.cu:501: at most 500 lines");
  EXPECT_EQ(finding(file_limits, "perf/a.cpp", {std::string(100, 'x')}), "0 findings");
  EXPECT_EQ(finding(file_limits, "perf/a.cpp", {"", std::string(101, 'x')}),
            "perf/a.cpp:2: over 100 columns");
  std::string accents = "// ";
  for (int i = 0; i < 97; ++i) accents += "\u00e9";
  EXPECT_EQ(finding(file_limits, "perf/a.cpp", {accents}), "0 findings");
  Tree reference;
  for (const std::string name : {"a", "b", "c", "d", "e"})
    reference["reference/" + name + ".cpp"] = lines(302);
  EXPECT_EQ(file_limits(reference), Findings{"reference: 1510 lines of code, at most 1500"});
}

TEST(ArchitectureRules, FunctionsAreShort) {
  for (const std::string opening :
       {"void f() {", "std::pair<int, int> Room::f(int a) const {", "TEST(A, B) {",
        "Room::Room(int a) : a_{a}, b_(1) {", "auto f() -> std::vector<int> {"}) {
    for (const bool inside : {false, true}) {
      std::vector<std::string> lines(60, "  x();");
      lines.front() = opening;
      lines.back() = "}";
      if (inside) lines.insert(lines.begin(), "class Room {");
      if (inside) lines.push_back("};");
      EXPECT_EQ(finding(class_limits, "perf/a.cpp", lines), "0 findings") << opening;
      lines.insert(lines.begin() + 3, "  x();");
      EXPECT_EQ(
          finding(class_limits, "perf/a.cpp", lines),
          "perf/a.cpp:" + std::string(inside ? "2" : "1") + ": a function of 61 lines, at most 60")
          << opening;
    }
  }
}

TEST(ArchitectureRules, TablesAndTextsAreNotFunctions) {
  std::vector<std::string> table(90, "      {\"key\", 1},");
  table.front() = "const Rules& rules() {";
  table.back() = "}";
  EXPECT_EQ(finding(class_limits, "perf/a.cpp", table), "0 findings");
  std::vector<std::string> text(90, "a{b:c(d,");
  text.front() = "const char* text() { return R\"css(";
  text.back() = "})css\"; }";
  EXPECT_EQ(finding(class_limits, "perf/a.cpp", text), "0 findings");
  const std::vector<std::string> list(90, "    1,");
  std::vector<std::string> values = {"const std::vector<int> kValues = {"};
  values.insert(values.end(), list.begin(), list.end());
  values.push_back("};");
  EXPECT_EQ(finding(class_limits, "perf/a.cpp", values), "0 findings");
}

// A class with this body, in a file of its own.
std::string of_class(const std::vector<std::string>& body, const std::string& kind = "class") {
  std::vector<std::string> lines = {"namespace a {", kind + " Room final : public Other {",
                                    " public:"};
  lines.insert(lines.end(), body.begin(), body.end());
  lines.insert(lines.end(), {"};", "}  // namespace a"});
  return finding(class_limits, "engine/a.hpp", lines);
}

TEST(ArchitectureRules, ClassesAreSmall) {
  const auto repeated = [](const std::string& line, int count) {
    std::vector<std::string> lines;
    for (int i = 0; i < count; ++i) {
      lines.push_back(line);
      lines.back().replace(line.find('@'), 1, std::to_string(i));
    }
    return lines;
  };
  const std::string room = "engine/a.hpp:2: Room has ";
  for (const std::string member :
       {"  std::map<int, std::pair<int, int>> a@_;", "  int a@_ = 3;",
        "  std::function<void(int)> a@_;  // f(x)", "  Foo a@_{1, 2};"}) {
    EXPECT_EQ(of_class(repeated(member, 12)), "0 findings") << member;
    EXPECT_EQ(of_class(repeated(member, 13)), room + "13 members, at most 12") << member;
    EXPECT_EQ(of_class(repeated(member, 13), "struct"), "0 findings") << member;
  }
  for (const std::string function :
       {"  int f@() const;", "  void f@(int a = {}) { x(); }", "  virtual at::Tensor f@() = 0;",
        "  std::vector<std::pair<int, int>> f@(std::function<void()> then) const {\n    y();\n  "
        "}"}) {
    EXPECT_EQ(of_class(repeated(function, 10)), "0 findings") << function;
    EXPECT_EQ(of_class(repeated(function, 11)), room + "11 public functions, at most 10")
        << function;
  }
  auto hidden = repeated("  int f@();", 11);
  hidden.insert(hidden.begin() + 1, " private:");
  EXPECT_EQ(of_class(hidden), "0 findings");
  EXPECT_EQ(of_class({"  explicit Room(int a, std::map<int, int> b, int c, int d, int e);"}),
            "0 findings");
  EXPECT_EQ(
      of_class({"  Room(int a, std::map<int, int> b, int c,", "       int d, int e, int f);"}),
      room + "6 constructor parameters, at most 5");
  EXPECT_EQ(of_class(repeated("  bool a@_ = false;", 2)), "0 findings");
  EXPECT_EQ(of_class(repeated("  bool a@_ = false;", 3)), room + "3 booleans, at most 2");
}

TEST(ArchitectureRules, HeadersOweARoomStatement) {
  const std::string path = "perf/a.hpp";
  EXPECT_EQ(finding(room_statements, path, {"// Room.", "// Depends on: std.", "#pragma once"}),
            "0 findings");
  EXPECT_EQ(finding(room_statements, path, {"// Room.", "#pragma once", "// Depends on: std."}),
            "perf/a.hpp:1: the room statement lacks \"Depends on\"");
  EXPECT_EQ(finding(room_statements, path, {"#pragma once", "// Room. Depends on: std."}),
            "perf/a.hpp:1: a header opens with its room statement");
  EXPECT_EQ(finding(room_statements, path, {"// Depends on: std."}),
            "perf/a.hpp:1: no #pragma once");
}

TEST(ArchitectureRules, ForbiddenWordsAreSeen) {
  const auto of_line = [](const std::string& line) {
    return finding(forbidden_words, "perf/a.cpp", {line});
  };
  for (const std::string line : {"EXPECT_NE"
                                 "AR(a, b, c);",
                                 "ok = at::allcl"
                                 "ose(a, b);",
                                 "double rt"
                                 "ol = 1;",
                                 "EXPECT_DOUBLE"
                                 "_EQ(a, b);"}) {
    EXPECT_EQ(of_line(line), "perf/a.cpp:1: a tolerance") << line;
  }
  for (const std::string line : {"// TO"
                                 "DO: later",
                                 "  GTEST_SK"
                                 "IP();",
                                 "TEST(A, DISABLED"
                                 "_B) {"}) {
    EXPECT_EQ(of_line(line), "perf/a.cpp:1: unfinished") << line;
  }
  EXPECT_EQ(of_line("open(\"/wo"
                    "rk/x\");"),
            "perf/a.cpp:1: a machine's path");
  EXPECT_EQ(of_line("nearly all work/home/root, a control, the atolls"), "0 findings");
}

TEST(ArchitectureRules, ASourceWithoutATestIsSeen) {
  Tree tree = {{"engine/loss/a.cpp", {}}, {"engine/loss/a.hpp", {}}};
  const Findings missing{"engine/loss/a.cpp:1: no test: expected engine/loss/tests/a_test.cpp"};
  EXPECT_EQ(untested_sources(tree), missing);
  tree["engine/loss/other.hpp"] = {"#include \"engine/loss/a.hpp\""};
  EXPECT_EQ(untested_sources(tree), missing) << "not a test";
  tree["engine/loss/tests/other_test.cpp"] = {"#include \"engine/loss/a.hpp\""};
  EXPECT_TRUE(none(untested_sources(tree)));
  tree.erase("engine/loss/tests/other_test.cpp");
  tree["engine/loss/tests/a_test.cpp"] = {};
  EXPECT_TRUE(none(untested_sources(tree)));
}

}  // namespace
}  // namespace equigrad::conformance::architecture
