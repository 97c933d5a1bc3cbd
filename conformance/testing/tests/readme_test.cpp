// The README tells the truth: its code is the program that runs, and what it names exists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace equigrad {
namespace {

const std::string kRoot = EQUIGRAD_SOURCE_DIR;

std::string read(const std::string& path) {
  std::ifstream file(kRoot + "/" + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool exists(const std::string& path) { return std::ifstream(kRoot + "/" + path).good(); }

std::string without_indent(const std::string& text) {
  std::istringstream lines(text);
  std::string line, result;
  while (std::getline(lines, line)) {
    const auto first = line.find_first_not_of(' ');
    if (first != std::string::npos) result += line.substr(first) + "\n";
  }
  return result;
}

// What stands between the first `open` and the next `close`.
std::string between(const std::string& text, const std::string& open, const std::string& close) {
  const auto begin = text.find(open);
  if (begin == std::string::npos) return {};
  const auto start = begin + open.size();
  return text.substr(start, text.find(close, start) - start);
}

TEST(Readme, ItsCodeIsTheQuickstart) {
  const auto shown = without_indent(between(read("README.md"), "```cpp\n", "```"));
  const auto run =
      without_indent(between(read("engine/quickstart.cpp"), "torch::manual_seed(1);\n", "\n}\n"));
  ASSERT_FALSE(shown.empty());
  EXPECT_EQ(shown, run);
}

TEST(Readme, TheQuickstartRunsAndLearns) {
  const char* program = std::getenv("EQUIGRAD_QUICKSTART");
  ASSERT_NE(program, nullptr) << "run this test through ctest, which says where the program is";
  FILE* pipe = popen(program, "r");
  ASSERT_NE(pipe, nullptr);
  std::array<char, 256> buffer{};
  std::string output;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) output += buffer.data();
  EXPECT_EQ(pclose(pipe), 0);
  double first = 0, last = 0;
  ASSERT_EQ(std::sscanf(output.c_str(), "loss %lf loss %lf", &first, &last), 2) << output;
  EXPECT_LT(last, first);
}

// The README and the pages beside it.
std::vector<std::string> documents() {
  std::vector<std::string> paths = {
      "README.md", "CONTRIBUTING.md", "conformance/contract/README.md",
      "conformance/faults/README.md", "property_tests/relations/README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(kRoot + "/docs"))
    if (entry.path().extension() == ".md")
      paths.push_back("docs/" + entry.path().filename().string());
  return paths;
}

// What `text` names that begins with a folder of the project: files, and folders with a slash at
// the end. <room> and the like stand for any.
std::set<std::string> named_paths(const std::string& text) {
  static const std::regex path(
      R"((?:^|[^\w/.])((?:docs|engine|reference|conformance|property_tests|perf|reports|examples|)"
      R"(python)/)"
      R"([\w./-]*\w[\w.]*/?))");
  std::set<std::string> named;
  for (std::sregex_iterator it(text.begin(), text.end(), path), end; it != end; ++it) {
    std::string one = (*it)[1].str();
    while (one.ends_with('.') || one.ends_with('/')) one.pop_back();
    named.insert(one);
  }
  return named;
}

TEST(Readme, WhatItNamesIsSeen) {
  EXPECT_THAT(
      named_paths("in `engine/loss/divisors.hpp`, engine/core/. (perf/not-here.md) <room>/X.hpp"),
      ::testing::ElementsAre("engine/core", "engine/loss/divisors.hpp", "perf/not-here.md"));
}

TEST(Readme, TheFilesThatDocumentsNameExist) {
  std::size_t count = 0;
  for (const auto& document : documents()) {
    ASSERT_TRUE(exists(document)) << document;
    for (const auto& path : named_paths(read(document))) {
      ++count;
      EXPECT_TRUE(std::filesystem::exists(kRoot + "/" + path)) << document << " names " << path;
    }
  }
  EXPECT_GE(count, 60u);
}

TEST(Readme, EveryRoomOfTheBuildIsOnThePageThatDrawsThem) {
  const std::string page = read("docs/architecture.md"), table = read("CMakeLists.txt");
  const std::regex row(R"(\nequigrad_room\(([a-z_]+/[a-z_]+)[ )])");
  std::size_t count = 0;
  for (std::sregex_iterator it(table.begin(), table.end(), row), end; it != end; ++it, ++count) {
    const std::string room = (*it)[1].str();
    const bool is_there =
        page.find(room + "/") != std::string::npos || page.find(room + ".hpp") != std::string::npos;
    EXPECT_TRUE(is_there) << room;
  }
  EXPECT_GE(count, 25u);
}

TEST(Readme, ThePresetsThatDocumentsNameExist) {
  const std::string presets = read("CMakePresets.json");
  const std::string workflows = presets.substr(presets.find("\"workflowPresets\""));
  const std::regex preset(R"(--workflow --preset ([a-z]+))");
  std::size_t commands = 0;
  for (const auto& document : documents()) {
    const std::string text = read(document);
    for (std::sregex_iterator it(text.begin(), text.end(), preset), end; it != end; ++it) {
      ++commands;
      EXPECT_THAT(workflows, ::testing::HasSubstr("\"name\": \"" + (*it)[1].str() + "\""));
    }
  }
  EXPECT_GE(commands, 4u);
}

TEST(Readme, ItIsShort) {
  const std::string readme = read("README.md");
  EXPECT_LE(std::count(readme.begin(), readme.end(), '\n'), 150);
}

}  // namespace
}  // namespace equigrad
