// A kill matrix written: its verdict, its figures, and every format; nothing foreign is markup.
#include "reports/kill_matrix.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "reports/tests/schema.hpp"
#include "reports/tests/xml.hpp"

namespace equigrad::conformance {
namespace {

using namespace reports;  // NOLINT: the whole test is about it
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kForeign = "</pre><script>alert(1)</script>|`*\x01";

FaultRow caught(const std::string& name, std::vector<std::string> checks, int64_t after_steps) {
  FaultRow row;
  row.name = name;
  row.what = "something";
  row.seam = "reduction";
  row.fate = Fate::Caught;
  row.acted_times = 1;
  row.cases = 1;
  row.found = {{.in = "Required.grad.a",
                .checks = std::move(checks),
                .after_steps = after_steps,
                .located = after_steps == 0,
                .first = "step 1 it",
                .replay = "equigrad run a",
                .seconds = 0.25}};
  row.has_data = true;
  row.elsewhere = {true, false, true, false};
  return row;
}

KillMatrix example() {
  KillMatrix matrix;
  matrix.environment.commit = "0123abc";
  matrix.panel = {"Required.grad.a"};
  matrix.faults = {caught("old.one", {"exact/gradient", "exact/master"}, 0),
                   caught("old.two", {"exact/master"}, 2), caught("mutant.one", {"time-out"}, 0)};
  matrix.faults[0].bugs = {"DS-01", "FSDP-2"};
  matrix.faults[1].bugs = {"DS-02"};
  matrix.faults[2].has_data = false;
  matrix.clean.asked = matrix.clean.run = 5'000;
  matrix.faults_s = 60;
  matrix.wall_s = 120;
  return matrix;
}

TEST(KillMatrix, TheFiguresAreCountedByKind) {
  const auto matrix = example();
  const auto old = counts(matrix, Faults::Historical), mutants = counts(matrix, Faults::Mutants);
  EXPECT_EQ(old.faults, 2);
  EXPECT_EQ(old.caught, 2);
  EXPECT_EQ(old.within_one_step, 1);
  EXPECT_EQ(old.located, 1);
  EXPECT_EQ(mutants.caught, 1);
  const auto all = counts(matrix, Faults::All);
  EXPECT_EQ(all.with_data, 2);
  EXPECT_THAT(all.elsewhere, ElementsAre(2, 0, 2, 0));
  const auto checks = checks_of(matrix);
  ASSERT_EQ(checks.size(), 3u);
  EXPECT_EQ(checks[0].check, "exact/master");
  EXPECT_EQ(checks[0].all, 2);
  EXPECT_EQ(checks[0].first, 1);
}

// Of all cases one catches the first fault and three the second; the third's were not all tried.
TEST(KillMatrix, WhatFewCasesCatchIsThinInEveryFormat) {
  auto matrix = example();
  matrix.faults[0].all_tried = matrix.faults[1].all_tried = true;
  matrix.faults[0].cases = matrix.faults[1].cases = 91;
  matrix.faults[1].found.resize(3, matrix.faults[1].found[0]);
  EXPECT_TRUE(is_thin(matrix.faults[0]));
  EXPECT_FALSE(is_thin(matrix.faults[1]));
  EXPECT_FALSE(is_thin(matrix.faults[2])) << "another case may catch it";
  EXPECT_EQ(catches_text(matrix.faults[0]), "1");
  EXPECT_EQ(catches_text(matrix.faults[2]), "1+");
  const std::string line =
      "caught by fewer than 3 cases: 1 fault, old.one (1 of 91 cases); 1 not "
      "counted behind the first (--thin does)";
  EXPECT_THAT(to_terminal(matrix), HasSubstr("# " + line + "\n"));
  EXPECT_THAT(to_terminal(matrix), HasSubstr("\nTHIN  old.one (1 of 91 cases): something\n"));
  EXPECT_THAT(to_terminal(matrix), HasSubstr("\nHELD  ")) << "it fails nothing";
  EXPECT_THAT(to_html(matrix), HasSubstr(line));
  EXPECT_THAT(to_html(matrix), HasSubstr("<a href=\"#old.one\">old.one (1 of 91 cases)</a>"));
  EXPECT_THAT(to_markdown(matrix), HasSubstr("caught by fewer than 3 cases: 1 fault"));
  auto read = nlohmann::json::parse(to_json(matrix));
  EXPECT_EQ(read.at("thin"), (nlohmann::json{"old.one"}));
  EXPECT_EQ(read.at("counted"), false);
  EXPECT_EQ(read.at("faults")[1].at("catches"), 3);
  EXPECT_EQ(read.at("faults")[0].at("thin"), true);
  EXPECT_EQ(read.at("faults")[2].at("all_tried"), false);
  matrix.is_counted = true;
  matrix.counting_s = 12;
  EXPECT_THAT(to_terminal(matrix),
              HasSubstr("; 1 not counted, for want of time; counting took 12.0 s\n"));
}

// Of 40 faults 39 are 97.5 %, and 38 are 95 %.
TEST(KillMatrix, WhatTheCoveringSelectionCatchesAloneHasAFloor) {
  const auto outcome_with = [](int64_t historical, int64_t mutants, auto change) {
    KillMatrix matrix = example();
    matrix.faults.clear();
    for (int i = 0; i < 80; ++i) {
      auto& row = matrix.faults.emplace_back(caught("one", {"exact/master"}, 0));
      if (i < 40) row.bugs = {"DS-01"};
      row.found[0].covering = i < 40 ? i < historical : i - 40 < mutants;
    }
    change(matrix);
    return outcome(matrix);
  };
  const auto whole = [](KillMatrix& of) { of.is_whole = true; };
  const auto only = [](KillMatrix& of) {
    of.covering_only = true;
    for (auto& row : of.faults)
      if (!row.found[0].covering) row.fate = Fate::Survived, row.found.clear();
  };
  EXPECT_EQ(outcome_with(39, 38, whole), Outcome::Held);
  EXPECT_EQ(outcome_with(38, 40, whole), Outcome::Failed);
  EXPECT_EQ(outcome_with(40, 37, whole), Outcome::Failed);
  EXPECT_EQ(outcome_with(0, 0, [](KillMatrix&) {}), Outcome::Held) << "a few faults by name";
  EXPECT_EQ(outcome_with(39, 38, only), Outcome::Held);
  EXPECT_EQ(outcome_with(38, 38, only), Outcome::Failed);
}

TEST(KillMatrix, EveryFormatSaysWhatTheCoveringSelectionCatches) {
  auto matrix = example();
  matrix.faults[0].found[0].covering = matrix.faults[2].found[0].covering = true;
  const std::string line =
      "caught by the covering selection alone, 1 case: historical faults 1 of 2, 50.0 % (at least "
      "97 %); mutants 1 of 1, 100.0 % (at least 95 %)";
  EXPECT_THAT(to_terminal(matrix), HasSubstr(line));
  EXPECT_THAT(to_html(matrix), HasSubstr(line));
  EXPECT_THAT(to_markdown(matrix), HasSubstr("covering selection alone"));
  const auto read = nlohmann::json::parse(to_json(matrix));
  EXPECT_EQ(read.at("historical").at("by_covering"), 1);
  EXPECT_EQ(read.at("faults")[0].at("covering"), true);
  EXPECT_EQ(read.at("faults")[1].at("covering"), false);
}

TEST(KillMatrix, CasesThatThePanelLacksAreNamedInEveryFormat) {
  auto matrix = example();
  matrix.not_run = {{"no images: give --data-dir", 5}};
  const std::string line = "not run: 5 cases of the panel, no images: give --data-dir";
  EXPECT_THAT(to_terminal(matrix), HasSubstr("# " + line + "\n"));
  EXPECT_THAT(to_html(matrix), HasSubstr(line));
  EXPECT_THAT(to_markdown(matrix), HasSubstr("not run: 5 cases of the panel"));
  EXPECT_EQ(nlohmann::json::parse(to_json(matrix)).at("not_run").at("no images: give --data-dir"),
            5);
  EXPECT_THAT(to_terminal(example()), Not(HasSubstr("not run")));
}

TEST(KillMatrix, RowsFitTheTerminalAndWhatIsLeftOutIsNamed) {
  auto matrix = example();
  matrix.command = "equigrad faults " + std::string(200, 'x');
  matrix.faults[0].name = std::string(40, 'n');
  matrix.faults[0].found[0].checks = {"exact/gradient", "exact/master", "exact/norm", "exact/loss"};
  matrix.faults[1].fate = Fate::Survived;
  matrix.faults[1].what = "nothing that is said of it in fewer than " + std::string(9, 'w') +
                          " eighty columns of a terminal";
  for (const std::size_t columns : {60U, 80U, 100U, 132U}) {
    std::istringstream lines(to_terminal(matrix, columns));
    for (std::string line; std::getline(lines, line);)
      if (!line.starts_with("# replay: ")) EXPECT_LE(line.size(), columns) << line;
  }
  const auto whole = to_terminal(matrix), narrow = to_terminal(matrix, 100);
  EXPECT_THAT(whole, HasSubstr("  exact/gradient exact/master exact/norm and 1 more\n"));
  EXPECT_THAT(whole, Not(HasSubstr("too wide")));
  EXPECT_THAT(narrow, HasSubstr("\n# too wide, in faults.json: s, else, seam\n"));
  EXPECT_THAT(narrow,
              ContainsRegex("\nn+  caught +[+]0  yes  no +1[+]  exact/gradient and 3 more\n"));
  EXPECT_THAT(narrow, HasSubstr("\n# replay: " + matrix.command + "\n")) << "a line to paste";
}

// What held, and how to see it again: the report's place follows, which the command knows.
TEST(KillMatrix, TheTerminalEndsWithTheVerdictAndItsReplay) {
  auto matrix = example();
  matrix.command = "equigrad faults old";
  EXPECT_THAT(to_terminal(matrix),
              ContainsRegex("\nHELD  [^\n]*\n# replay: equigrad faults old\n$"));
  matrix.clean.alarms = {{"Required.b", "it differs", "equigrad run b"}};
  EXPECT_THAT(to_terminal(matrix), ContainsRegex("\nFAILED  [^\n]*\n# replay: equigrad run b\n$"));
}

// A message ends with a newline, or is a single line without one.
TEST(KillMatrix, AnAlarmsReplayHasALineOfItsOwn) {
  auto matrix = example();
  for (const char* message : {"it differs", "it differs\n"}) {
    matrix.clean.alarms = {{"Required.b", message, "equigrad run b"}};
    EXPECT_THAT(to_terminal(matrix),
                HasSubstr("FALSE ALARM  Required.b\nit differs\n# replay: equigrad run b\n"));
  }
}

// Each way to fail, alone.
TEST(KillMatrix, TheExitCodeIsThatOfTheWorst) {
  const auto code_of = [](auto change) {
    auto matrix = example();
    change(matrix);
    return exit_code(matrix);
  };
  EXPECT_EQ(code_of([](KillMatrix&) {}), 0);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.faults[1].fate = Fate::Survived; }), 1);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.faults[1].fate = Fate::DidNotAct; }), 1);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.faults[1].fate = Fate::Equivalent; }), 0);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.faults[1].fate = Fate::NotRun; }), 4);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.clean.alarms = {{"a", "b", "c"}}; }), 1);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.clean.run = 4'999; }), 4);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.stale_proofs = {"old.one"}; }), 1);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.faults.clear(); }), 4);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.failure = "no ranks"; }), 3);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.is_void = true; }), 1);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.is_void = true, of.failure = "it fails"; }), 1);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.interrupted = of.is_void = true; }), 130);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.interrupted = true; }), 130);
  EXPECT_EQ(code_of([](KillMatrix& of) { of.interrupted = true, of.signal = 15; }), 143);
}

TEST(KillMatrix, JsonHasALineForEachFaultAndTheFiguresAgain) {
  const auto text = to_json(example());
  const auto read = nlohmann::json::parse(text);
  EXPECT_EQ(read.at("schema_version"), 1);
  EXPECT_EQ(read.at("outcome"), "held");
  EXPECT_EQ(read.at("historical").at("within_one_step"), 1);
  const auto& faults = read.at("faults");
  ASSERT_EQ(faults.size(), 3u);
  EXPECT_EQ(faults[0].at("bugs"), (nlohmann::json{"DS-01", "FSDP-2"}));
  EXPECT_EQ(faults[0].at("found")[0].at("checks")[0], "exact/gradient");
  EXPECT_EQ(faults[1].at("found")[0].at("after_steps"), 2);
  EXPECT_EQ(faults[0].at("elsewhere").at("assert_close"), true);
  EXPECT_TRUE(faults[2].at("elsewhere").at("assert_close").is_null());
  EXPECT_NE(text.find("\n {\"fault\":\"mutant.one\""), std::string::npos);
}

TEST(KillMatrix, WhatIsWrittenKeepsToThePublishedSchemaWhichRefusesTheRest) {
  auto matrix = example();
  matrix.seed = UINT64_MAX;
  matrix.clean.alarms = {{kForeign, kForeign, kForeign}};
  matrix.wall_s = NAN;
  const std::string text = to_json(matrix);
  EXPECT_THAT(text, HasSubstr("\"seed\": \"18446744073709551615\""));
  EXPECT_THAT(schema_problems("faults.schema.json", {text, to_json(KillMatrix{})}), Each(""));
  const auto good = nlohmann::json::parse(text);
  const std::vector<std::pair<const char*, nlohmann::json>> changes = {
      {"/outcome", "splendid"},
      {"/seed", 7},
      {"/wall_s", nullptr},
      {"/faults/0/fate", "lost"},
      {"/faults/0/found/0/in", 1},
      {"/faults/0/found/0/after_steps", -2},
      {"/faults/0/elsewhere/x", 1},
      {"/faults/0/acted/step", "first"},
      {"/mutants/caught", -1},
      {"/environment/cores", "two"},
      {"/clean/alarms/0/at", 1},
      {"/checks/0/all", "many"},
      {"/not_run/it", "many"},
      {"/more", true},
      {"/panel", nlohmann::json::array({1})}};
  std::vector<std::string> bad;
  for (const auto& [path, value] : changes) {
    auto changed = good;
    changed[nlohmann::json::json_pointer(path)] = value;
    bad.push_back(changed.dump());
  }
  for (const std::string parent : {"", "/faults/0", "/faults/0/found/0", "/clean", "/mutants"})
    for (const auto& [key, value] : good.at(nlohmann::json::json_pointer(parent)).items()) {
      auto changed = good;
      changed.at(nlohmann::json::json_pointer(parent)).erase(key);
      bad.push_back(changed.dump());
    }
  EXPECT_THAT(schema_problems("faults.schema.json", bad), Each(Not("")));
}

// A reader that takes numbers for doubles, as JavaScript does, would get 18446744073709551616.
TEST(KillMatrix, EveryDigitOfASeedOf64BitsIsInTheJson) {
  auto matrix = example();
  matrix.seed = 18446744073709551615U;
  EXPECT_EQ(nlohmann::json::parse(to_json(matrix)).at("seed"), "18446744073709551615");
}

TEST(KillMatrix, TheTerminalAndMarkdownSayWhatWasFound) {
  auto matrix = example();
  matrix.faults.push_back(caught("same.bits", {}, 0));
  matrix.faults.back().fate = Fate::Equivalent;
  matrix.faults.back().found.clear();
  matrix.faults.back().proof = "x + 0 is x";
  for (const auto& text : {to_terminal(matrix), to_markdown(matrix)}) {
    EXPECT_THAT(text, HasSubstr("historical faults: 2 of 2 caught, 1 of them within one step"));
    EXPECT_THAT(text, HasSubstr("mutants: 1 of 2 caught, 1 of them within one step; 1 proved"));
    EXPECT_THAT(text, HasSubstr("2 of 3 caught faults, 66.7 %"));
    EXPECT_THAT(text, HasSubstr("0 false alarms in 5,000 of 5,000"));
    EXPECT_THAT(text, HasSubstr("x + 0 is x"));
    EXPECT_THAT(text, HasSubstr("assert"));
  }
  EXPECT_THAT(to_terminal(matrix), HasSubstr("HELD  "));
  matrix.faults[0].fate = Fate::Survived;
  matrix.clean.alarms = {{"Required.b", "  it differs\n", "equigrad run b --knobs '{}'"}};
  EXPECT_THAT(to_terminal(matrix), HasSubstr("SURVIVED  old.one: something\n"));
  EXPECT_THAT(to_terminal(matrix), HasSubstr("# replay: equigrad run b --knobs '{}'"));
  EXPECT_THAT(to_terminal(matrix), HasSubstr("FAILED  "));
}

TEST(KillMatrix, APageIsWellFormedAndForeignTextIsText) {
  auto matrix = example();
  matrix.faults[0].name = matrix.faults[0].what = matrix.faults[0].found[0].first = kForeign;
  matrix.faults[0].found[0].checks = {kForeign};
  matrix.faults[1].fate = Fate::Survived;
  matrix.clean.alarms = {{kForeign, kForeign, kForeign}};
  const auto page = read_xml("<main>" + page_kill_matrix(matrix) + "</main>");
  EXPECT_THAT(all(page, "script"), IsEmpty());
  EXPECT_EQ(all(page, "section").size(), 3u);
  EXPECT_EQ(all(page, "article").size(), 2u);
  const auto tables = all(page, "table");
  ASSERT_EQ(tables.size(), 2u);
  for (const auto& table : tables) {
    const auto rows = all(table, "tr");
    ASSERT_EQ(rows.size(), 4u);
    const auto cells = [](const pugi::xml_node& row) {
      return all(row, "th").size() + all(row, "td").size();
    };
    for (const auto& row : rows) EXPECT_EQ(cells(row), cells(rows[0]));
  }
  EXPECT_EQ(all(all(tables[0], "tr")[0], "th").size(), 11u) << "as many as fit a window";
  EXPECT_THAT(to_html(matrix), Not(HasSubstr("<script>alert")));
  EXPECT_THAT(to_markdown(matrix), Not(HasSubstr("<script")));
}

}  // namespace
}  // namespace equigrad::conformance
