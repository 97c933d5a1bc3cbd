// The README tells the truth: its code is the program that runs, and what it names exists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
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

TEST(Readme, TheFilesAndPresetsThatItNamesExist) {
  const std::string readme = read("README.md");
  const std::regex file(
      R"(`((?:engine|reference|conformance|property_tests|perf|reports)/[^`<]*)`)");
  std::set<std::string> named;
  for (std::sregex_iterator it(readme.begin(), readme.end(), file), end; it != end; ++it)
    named.insert((*it)[1].str());
  EXPECT_GE(named.size(), 10u);
  for (const auto& path : named) EXPECT_TRUE(exists(path)) << path;
  const std::string presets = read("CMakePresets.json");
  const std::string workflows = presets.substr(presets.find("\"workflowPresets\""));
  const std::regex preset(R"(--workflow --preset ([a-z]+))");
  std::size_t commands = 0;
  for (std::sregex_iterator it(readme.begin(), readme.end(), preset), end; it != end; ++it) {
    ++commands;
    EXPECT_THAT(workflows, ::testing::HasSubstr("\"name\": \"" + (*it)[1].str() + "\""));
  }
  EXPECT_GE(commands, 2u);
}

TEST(Readme, ItIsShort) {
  const std::string readme = read("README.md");
  EXPECT_LE(std::count(readme.begin(), readme.end(), '\n'), 150);
}

}  // namespace
}  // namespace equigrad
