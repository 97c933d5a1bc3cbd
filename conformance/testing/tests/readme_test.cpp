// The README tells the truth: its code is the program that runs, and what it names exists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
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

struct Ended {
  std::string output;  // with what went to stderr
  int code = -1;
};

// The program of this build that ctest names so, with these words behind it, in that folder.
Ended run(const char* program, const std::string& words, const std::string& folder = ".") {
  const char* path = std::getenv(program);
  if (path == nullptr) return {"run this test through ctest, which sets " + std::string(program)};
  const std::string command = "cd '" + folder + "' && " + path + " " + words + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {"no pipe"};
  std::array<char, 256> buffer{};
  Ended ended;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) ended.output += buffer.data();
  ended.code = WEXITSTATUS(pclose(pipe));
  return ended;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Numbers with all their digits, which another machine's kernels may end otherwise.
std::string without_digits(const std::string& text) {
  return std::regex_replace(text, std::regex(R"(\d\.\d{8}e)"), "N");
}

// The command behind "$ " is run; what stands below it are parts of lines that it prints.
TEST(Readme, TheFailureThatItShowsIsPrinted) {
  const auto lines = lines_of(between(read("README.md"), "```text\n", "```"));
  const std::string prompt = "$ equigrad ";
  ASSERT_GE(lines.size(), 5u);
  ASSERT_TRUE(lines[0].starts_with(prompt)) << lines[0];
  const std::string folder = std::filesystem::temp_directory_path() / "equigrad-readme-report";
  const auto ended = run("EQUIGRAD_BINARY", lines[0].substr(prompt.size()) + " --report " + folder);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(ended.code, 1) << ended.output;
  for (std::size_t i = 1; i < lines.size(); ++i)
    EXPECT_THAT(without_digits(ended.output), ::testing::HasSubstr(without_digits(lines[i])));
}

TEST(Readme, TheQuickstartRunsAndLearns) {
  const auto [output, code] = run("EQUIGRAD_QUICKSTART", "");
  EXPECT_EQ(code, 0);
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

// Those that the package is asked for; what they include follows them.
TEST(Readme, TheHeadersThatDocumentsIncludeAreInstalled) {
  const std::string rooms = read("CMakeLists.txt");
  const auto installed = between(rooms, "equigrad_package(", ")") + " " +
                         between(rooms, "equigrad_check_package(", ")") + " ";
  const std::regex include(R"(#include <equigrad/([a-z_/]+\.hpp)>)");
  std::size_t count = 0;
  for (const auto& document : documents()) {
    const std::string text = read(document);
    for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
      ++count;
      const std::regex named("/" + (*it)[1].str() + R"(\s)");
      EXPECT_TRUE(std::regex_search(installed, named)) << document << " includes " << (*it)[1];
    }
  }
  EXPECT_GE(count, 4u);
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
  std::istringstream words(read("README.md"));
  EXPECT_LE(std::distance(std::istream_iterator<std::string>(words), {}), 700);
}

// "run --fault --report" of every command `equigrad ...` in the code of `text`: blocks and spans.
std::set<std::string> commands_in(const std::string& text) {
  static const std::regex command(
      R"((?:^|`|\$ |&& |/)equigrad ((?:(?:config|checkpoint|bench|report|baseline) )?[a-z]+))"
      R"((?=[ `\n]|$)([^`#|&\n]*))");
  static const std::regex flag(R"(\s(--[a-z0-9-]+))");
  std::set<std::string> commands;
  for (const auto& line : lines_of(text))
    for (std::sregex_iterator it(line.begin(), line.end(), command), end; it != end; ++it) {
      std::string one = (*it)[1].str();
      const std::string rest = (*it)[2].str();
      for (std::sregex_iterator part(rest.begin(), rest.end(), flag); part != end; ++part)
        one += " " + (*part)[1].str();
      commands.insert(one);
    }
  return commands;
}

TEST(Readme, CommandsAreSeen) {
  EXPECT_THAT(
      commands_in("Say `equigrad run CASE --seed N`, or\nbuild/dev/equigrad list  # all\n"
                  "an equigrad one; `equigrad config check F --world 2` | `equigrad --help`\n"
                  "equigrad bench race --suite smoke"),
      ::testing::ElementsAre("bench race --suite", "config check --world", "list", "run --seed"));
}

// What of "run --fault --report" the program does not have; `helps` keeps what it was asked.
std::string unknown_in(const std::string& command, std::map<std::string, Ended>& helps) {
  const std::string name = command.substr(0, command.find(" --"));
  if (!helps.contains(name)) helps[name] = run("EQUIGRAD_BINARY", name + " --help");
  const auto& help = helps[name];
  if (help.code != 0) return "the command equigrad " + name;
  std::string unknown;
  std::istringstream flags(command.substr(name.size()));
  for (std::string flag; flags >> flag;)
    if (!std::regex_search(help.output, std::regex(flag + "(?![a-z0-9-])")))
      unknown += "the option " + flag + " of equigrad " + name + "\n";
  return unknown;
}

TEST(Readme, TheCommandsThatDocumentsGiveExist) {
  std::size_t count = 0;
  std::map<std::string, Ended> helps;
  for (const auto& document : documents())
    for (const auto& command : commands_in(read(document))) {
      ++count;
      EXPECT_EQ(unknown_in(command, helps), "") << document;
    }
  EXPECT_GE(count, 60u);
}

// Every command of an example for CI on a line of its own, those of its comments too.
std::string commands_apart(const std::string& example) {
  return std::regex_replace(example, std::regex("[-:;=] (?=equigrad )"), "\n");
}

TEST(CiExamples, CommandsAreSeenAndWhatIsNoneIsUnknown) {
  EXPECT_THAT(
      commands_in(commands_apart(
          "# Once: equigrad baseline update --reason x; equigrad diff a b\n  script:\n"
          "    - equigrad run --covering\n      - run: A= equigrad judge merge s --quick\n")),
      ::testing::ElementsAre("baseline update --reason", "diff", "judge --quick",
                             "run --covering"));
  std::map<std::string, Ended> helps;
  EXPECT_EQ(unknown_in("list --covering", helps), "");
  EXPECT_EQ(unknown_in("list --coverin", helps), "the option --coverin of equigrad list\n");
  EXPECT_EQ(unknown_in("lits", helps), "the command equigrad lits");
}

// Its commands exist, and JUnit that a job hands over lies in the folder of a report.
TEST(CiExamples, NameCommandsAndFilesThatThereAre) {
  std::map<std::string, Ended> helps;
  for (const std::string name : {"gitlab.yml", "judge.yml", "run.yml"}) {
    const auto text = read("docs/ci/" + name);
    const auto commands = commands_in(commands_apart(text));
    EXPECT_GE(commands.size(), 3u) << name;
    for (const auto& command : commands) EXPECT_EQ(unknown_in(command, helps), "") << name;
    const std::regex junit(R"(junit: ([a-z-]+)/junit\.xml)");
    for (std::sregex_iterator it(text.begin(), text.end(), junit), end; it != end; ++it)
      EXPECT_THAT(text, ::testing::HasSubstr("--report " + (*it)[1].str() + "\n")) << name;
  }
  const auto of_gitlab = commands_in(commands_apart(read("docs/ci/gitlab.yml")));
  EXPECT_TRUE(of_gitlab.contains("run --covering --report"));
}

struct CommandRow {
  std::string words;               // behind `equigrad`
  int code = -1;                   // with which it ends
  std::vector<std::string> parts;  // of what it prints
};

// Rows of tables whose head says so: what was met, the command, its exit code, what it says.
std::vector<CommandRow> command_rows(const std::string& page) {
  static const std::regex row(R"(^\|[^|]*\| `([^`]+)` \| (\d+) \|([^|]*)\|$)"), part("`([^`]+)`");
  std::vector<CommandRow> rows;
  bool is_within = false;
  for (const auto& line : lines_of(page)) {
    if (line == "| what was met | `equigrad` ... | code | it says |") is_within = true;
    if (line.empty()) is_within = false;
    std::smatch cells;
    if (!is_within || !std::regex_match(line, cells, row)) continue;
    rows.push_back({cells[1].str(), std::stoi(cells[2].str()), {}});
    const std::string said = cells[3].str();
    for (std::sregex_iterator it(said.begin(), said.end(), part), end; it != end; ++it)
      rows.back().parts.push_back((*it)[1].str());
  }
  return rows;
}

// Empty where the command ends and says as its row does.
std::string other_than_in(const CommandRow& row, const std::string& folder) {
  const auto ended = run("EQUIGRAD_BINARY", row.words, folder);
  std::string problem;
  if (ended.code != row.code) problem = "ends with " + std::to_string(ended.code) + "\n";
  for (const auto& part : row.parts)
    if (ended.output.find(part) == std::string::npos) problem += "does not say " + part + "\n";
  return problem.empty() ? "" : "equigrad " + row.words + ": " + problem + ended.output;
}

TEST(FirstUse, ItsCommandsEndAndSayWhatThePageSays) {
  const auto page = read("docs/first-use.md");
  std::string folder = ::testing::TempDir() + "first-use-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  for (const std::string name : {"ds_config.json", "old_form.json"}) {
    const auto text = between(page, "```json " + name + "\n", "```");
    ASSERT_FALSE(text.empty()) << name;
    std::ofstream(folder + "/" + name) << text;
  }
  const auto rows = command_rows(page);
  EXPECT_GE(rows.size(), 28u);
  for (const auto& row : rows) EXPECT_EQ(other_than_in(row, folder), "");
  std::filesystem::remove_all(folder);
}

TEST(FirstUse, ARowThatIsNotSoIsSeen) {
  const auto rows = command_rows(
      "| what was met | `equigrad` ... | code | it says |\n|---|---|--:|---|\n"
      "| a | `run --seed -1` | 0 | `at least 0` |\n| b | `--version` | 0 | `torch`, `no such` |\n"
      "\n| c | `bogus` | 2 | |\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(other_than_in(rows[0], "."),
              ::testing::StartsWith("equigrad run --seed -1: ends with 2\n"));
  EXPECT_THAT(other_than_in(rows[1], "."),
              ::testing::StartsWith("equigrad --version: does not say no such\n"));
}

// What a user types; the program that measures is found by `equigrad bench`.
TEST(Readme, MeasurementsAreCommandsOfEquigrad) {
  const std::regex other(R"(equigrad_perf [a-z]+(?![a-z_]))");
  for (const auto& document : documents())
    for (const auto& line : lines_of(read(document)))
      EXPECT_FALSE(std::regex_search(line, other)) << document << ": " << line;
}

}  // namespace
}  // namespace equigrad
