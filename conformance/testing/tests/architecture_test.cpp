// The rules of the tree hold for the tree, and each of them sees the fault it is there for.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "conformance/testing/architecture/directions.hpp"
#include "conformance/testing/architecture/sizes.hpp"
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
      if (top_of(path) == folder) lines += text.size(), ++files;
    }
    std::cout << folder << ": " << lines << " lines in " << files << " files\n";
    EXPECT_GT(files, 0u) << folder;
  }
}

TEST(Architecture, IncludesGoInOneDirection) { EXPECT_TRUE(none(include_directions(our_tree()))); }
TEST(Architecture, FilesAndFunctionsAreSmall) { EXPECT_TRUE(none(sizes(our_tree()))); }
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

std::string of_include(const std::string& path, const std::string& target) {
  const bool ours = target.find('/') != std::string::npos && !target.starts_with("torch/") &&
                    !target.starts_with("ATen/");
  return finding(include_directions, path,
                 {"#include " + (ours ? '"' + target + '"' : '<' + target + '>')});
}

TEST(ArchitectureRules, AForbiddenIncludePlantedInATreeOnDiskIsSeen) {
  std::string root = (std::filesystem::temp_directory_path() / "equigrad-tree-XXXXXX").string();
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  std::filesystem::create_directories(root + "/reference/data");
  std::filesystem::create_directories(root + "/build/engine");
  std::ofstream(root + "/reference/good.cpp") << "#include \"reference/models/model.hpp\"\n";
  std::ofstream(root + "/build/engine/ignored.cpp") << "#include \"reference/models/model.hpp\"\n";
  std::ofstream(root + "/reference/data/notes.md") << "#include \"engine/engine.hpp\"\n";
  EXPECT_TRUE(none(include_directions(read_tree(root))));
  std::ofstream(root + "/reference/bad.cpp") << "  # include \"engine/engine.hpp\"  // why not\n";
  EXPECT_EQ(include_directions(read_tree(root)),
            Findings{"reference/bad.cpp:1: reference must not include engine"});
  std::filesystem::remove_all(root);
}

TEST(ArchitectureRules, TopFoldersKeepTheirDirection) {
  const std::vector<std::string> apart = {"engine", "reference", "reports"};
  for (const std::string& from : apart) {
    for (const std::string to : {"engine", "reference", "reports", "conformance", "perf"}) {
      const std::string expected =
          from == to ? "0 findings" : from + "/a.cpp:1: " + from + " must not include " + to;
      EXPECT_EQ(of_include(from + "/a.cpp", to + "/b.hpp"), expected);
    }
    EXPECT_EQ(of_include("conformance/a.cpp", from + "/b.hpp"), "0 findings");
    EXPECT_EQ(of_include("perf/a.cpp", from + "/b.hpp"), "0 findings");
  }
  EXPECT_EQ(of_include("conformance/a.cpp", "perf/b.hpp"),
            "conformance/a.cpp:1: conformance must not include perf");
  EXPECT_EQ(of_include("conformance/oracle/a.cpp", "reference/b.hpp"),
            "conformance/oracle/a.cpp:1: the oracle must not include what it judges");
}

TEST(ArchitectureRules, StationsOfTheEngineStayApart) {
  EXPECT_EQ(of_include("engine/shard/a.cpp", "engine/bucket/b.hpp"),
            "engine/shard/a.cpp:1: engine/shard must not include engine/bucket/b.hpp");
  EXPECT_EQ(of_include("engine/loss/a.hpp", "engine/engine.hpp"),
            "engine/loss/a.hpp:1: engine/loss must not include engine/engine.hpp");
  EXPECT_EQ(of_include("engine/comm/a.cpp", "engine/parameter/b.hpp"),
            "engine/comm/a.cpp:1: engine/comm must not include engine/parameter/b.hpp");
  EXPECT_EQ(of_include("engine/layout/a.cpp", "engine/comm/b.hpp"),
            "engine/layout/a.cpp:1: engine/layout must not include engine/comm/b.hpp");
  for (const std::string target :
       {"engine/shard/b.hpp", "engine/layout/b.hpp", "engine/config/config.hpp",
        "engine/comm/b.hpp", "engine/trace/b.hpp"}) {
    EXPECT_EQ(of_include("engine/shard/a.cpp", target), "0 findings") << target;
    EXPECT_EQ(of_include("engine/core/engine.cpp", target), "0 findings") << target;
  }
}

TEST(ArchitectureRules, LibrariesStayWhereTheyBelong) {
  const std::string c10d = "torch/csrc/distributed/c10d/Work.hpp";
  EXPECT_EQ(of_include("engine/comm/gloo.cpp", c10d), "0 findings");
  for (const std::string path :
       {"engine/comm/a.hpp", "engine/core/engine.cpp", "conformance/a.cpp"}) {
    EXPECT_EQ(of_include(path, c10d),
              path + ":1: only the sources of engine/comm may include c10d");
  }
  EXPECT_EQ(of_include("reports/a.cpp", "ATen/ATen.h"),
            "reports/a.cpp:1: reports must not include LibTorch");
  EXPECT_EQ(of_include("engine/layout/a.hpp", "ATen/core/Tensor.h"),
            "engine/layout/a.hpp:1: engine/layout must not include LibTorch");
  EXPECT_EQ(of_include("engine/a.hpp", "torch/torch.h"),
            "engine/a.hpp:1: no torch/torch.h in a header");
  EXPECT_EQ(of_include("engine/a.cpp", "torch/torch.h"), "0 findings");
  EXPECT_EQ(finding(include_directions, "engine/loss/a.cpp", {"#include \"divisors.hpp\""}),
            "engine/loss/a.cpp:1: write \"divisors.hpp\" from the project root");
}

TEST(ArchitectureRules, SizesAreLimited) {
  const auto lines = [](size_t count) { return std::vector<std::string>(count, "int x;"); };
  EXPECT_EQ(finding(sizes, "engine/a.hpp", lines(150)), "0 findings");
  EXPECT_EQ(finding(sizes, "engine/a.hpp", lines(151)), "engine/a.hpp:151: at most 150 lines");
  EXPECT_EQ(finding(sizes, "engine/a.cpp", lines(300)), "0 findings");
  EXPECT_EQ(finding(sizes, "engine/a.cu", lines(301)), "engine/a.cu:301: at most 300 lines");
  EXPECT_EQ(finding(sizes, "perf/a.cpp", {std::string(100, 'x')}), "0 findings");
  EXPECT_EQ(finding(sizes, "perf/a.cpp", {"", std::string(101, 'x')}),
            "perf/a.cpp:2: over 100 columns");
  std::string accents = "// ";
  for (int i = 0; i < 97; ++i) accents += "\u00e9";
  EXPECT_EQ(finding(sizes, "perf/a.cpp", {accents}), "0 findings");
  Tree reference;
  for (const std::string name : {"a", "b", "c", "d", "e"})
    reference["reference/" + name + ".cpp"] = lines(290);
  EXPECT_EQ(sizes(reference), Findings{"reference: 1450 lines of code, at most 1280"});
}

TEST(ArchitectureRules, FunctionsAreShort) {
  for (const std::string opening :
       {"void f() {", "std::pair<int, int> Room::f(int a,", "TEST(A, B) {"}) {
    std::vector<std::string> lines(60, "  x();");
    lines.front() = opening;
    lines.back() = "}";
    EXPECT_EQ(finding(sizes, "perf/a.cpp", lines), "0 findings") << opening;
    lines.insert(lines.begin() + 1, "  x();");
    EXPECT_EQ(finding(sizes, "perf/a.cpp", lines),
              "perf/a.cpp:1: a function of 61 lines, at most 60")
        << opening;
    lines.front() = "class Room {";
    lines.back() = "};";
    EXPECT_EQ(finding(sizes, "perf/a.cpp", lines), "0 findings");
  }
}

TEST(ArchitectureRules, TablesAndTextsAreNotFunctions) {
  std::vector<std::string> table(90, "      {\"key\", 1},");
  table.front() = "const Rules& rules() {";
  table.back() = "}";
  EXPECT_EQ(finding(sizes, "perf/a.cpp", table), "0 findings");
  std::vector<std::string> text(90, "a{b:c(d,");
  text.front() = "const char* kText = R\"css(";
  text.back() = "})css\";";
  EXPECT_EQ(finding(sizes, "perf/a.cpp", text), "0 findings");
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
  const Findings missing{"engine/loss/a.cpp:1: no test: expected conformance/loss/a_test.cpp"};
  EXPECT_EQ(untested_sources(tree), missing);
  tree["conformance/loss/other.cpp"] = {"#include \"engine/loss/a.hpp\""};
  EXPECT_EQ(untested_sources(tree), missing) << "not a test";
  tree["conformance/loss/other_test.cpp"] = {"#include \"engine/loss/a.hpp\""};
  EXPECT_TRUE(none(untested_sources(tree)));
  tree.erase("conformance/loss/other_test.cpp");
  tree["conformance/loss/a_test.cpp"] = {};
  EXPECT_TRUE(none(untested_sources(tree)));
}

}  // namespace
}  // namespace equigrad::conformance::architecture
