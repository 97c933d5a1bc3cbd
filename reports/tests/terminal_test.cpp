#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>

#include "reports/merge.hpp"
#include "reports/tests/example_run.hpp"
#include "reports/tests/golden.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Terminal, TheTableIsTheOneAgreedOn) {
  expect_golden(reports::to_terminal(example_run()), "terminal.txt");
}

TEST(Terminal, WithoutColourThereIsNoEscapeSequence) {
  reports::Run run = example_run();
  run.cases[2].message = kHostile;
  run.cases[2].replay = kHostile;
  run.command = kHostile;
  run.not_run = {{kHostile, 1}};
  EXPECT_THAT(reports::to_terminal(run), Not(HasSubstr("\x1b")));
  EXPECT_THAT(reports::to_terminal(run), Not(HasSubstr("\xC2\x9B")));
}

TEST(Terminal, ColourChangesNothingButColour) {
  std::string coloured = reports::to_terminal(example_run(), {.colour = true});
  EXPECT_THAT(coloured, HasSubstr("\x1b[31mFAILED\x1b[0m"));
  for (const char* code : {"\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"}) {
    for (size_t at = 0; (at = coloured.find(code, at)) != std::string::npos;) {
      coloured.erase(at, std::string(code).size());
    }
  }
  EXPECT_EQ(coloured, reports::to_terminal(example_run()));
}

TEST(Terminal, OneRowForEachStagePrecisionAndNumberOfRanks) {
  const std::string text = reports::to_terminal(large_run(512, 0));
  size_t rows = 0;
  for (size_t at = 0; (at = text.find("\n      ", at)) != std::string::npos; ++at) ++rows;
  EXPECT_EQ(rows, 4u * 2 * 4);
  EXPECT_THAT(text, HasSubstr("\nHELD  Every case that ran held"));
}

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0, begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    if (text[begin] == ' ' || text.compare(begin, 7, "# stage") == 0)
      widest = std::max(widest, end - begin);
  return widest;
}

TEST(Terminal, ColumnsThatDoNotFitAreLeftOutAndNamed) {
  const reports::Run run = large_run(512, 0);
  const std::string whole = reports::to_terminal(run);
  EXPECT_THAT(whole, Not(HasSubstr("# too wide")));
  EXPECT_EQ(reports::to_terminal(run, {.columns = 200}), whole);
  ASSERT_GT(widest_line(whole), 80u);
  const std::string narrow = reports::to_terminal(run, {.columns = 80});
  EXPECT_LE(widest_line(narrow), 80u);
  EXPECT_THAT(narrow, HasSubstr("\n# too wide, in run.json: time, bounded"));
  EXPECT_THAT(narrow, HasSubstr("\n# stage  precision  ranks  cases"));
  EXPECT_THAT(narrow, HasSubstr("verdict\n"));
  EXPECT_THAT(reports::to_terminal(run, {.columns = 40}),
              HasSubstr("# too wide, in run.json: time, bounded, margin, cross, compared\n"));
}

TEST(Terminal, FaultsThatAreAllCaughtAreOneLine) {
  reports::Run run = large_run(8, 0);
  EXPECT_THAT(reports::to_terminal(run), HasSubstr("\n# planted: 3 faults, all caught\n"));
  EXPECT_THAT(reports::to_terminal(run), Not(HasSubstr("->")));
  run.self_checks.pop_back();  // too few make a run void
  EXPECT_THAT(reports::to_terminal(run), HasSubstr("once more -> caught by exact lane"));
}

std::size_t number_of(const std::string& what, const std::string& text) {
  std::size_t number = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++number;
  return number;
}

TEST(Terminal, ACauseIsShownOnceAndSaysWhereItIs) {
  const reports::Run run = large_run(100, 10);
  const std::string text = reports::to_terminal(run);
  EXPECT_EQ(number_of("\nfailed  Required.", text), 1u);
  EXPECT_THAT(text, HasSubstr("\n  this cause: 10 cases of 100"));
  EXPECT_THAT(text, Not(HasSubstr(" more cause")));
}

TEST(Terminal, ACauseIsShownByItsWorstCase) {
  reports::Run run = large_run(40, 10);
  auto& worst = run.cases[29];
  for (std::size_t i = 9; i < run.cases.size(); i += 10)
    for (auto& lane : run.cases[i].lanes) lane.margin = 2;
  for (auto& lane : worst.lanes) lane.margin = 5;
  EXPECT_THAT(reports::to_terminal(run), HasSubstr("\nfailed  " + worst.id));
}

TEST(Terminal, CausesBeyondTheLimitAreCounted) {
  reports::Run run = large_run(100, 10);
  for (size_t i = 9; i < run.cases.size(); i += 10)
    run.cases[i].message = "cause " + std::string(i, 'x');
  const std::string text = reports::to_terminal(run, {.messages = 3});
  EXPECT_EQ(number_of("\nfailed  Required.", text), 3u);
  EXPECT_THAT(text, HasSubstr("\nand 7 more causes; the report"));
  EXPECT_EQ(number_of("\nfailed  Required.", reports::to_terminal(run)), 10u);
}

TEST(Terminal, OnlyWhatWasAskedForIsCounted) {
  reports::Run run = large_run(8, 0);
  run.not_run = {{reports::kNotSelected, 5000}, {"no device", 2}};
  const std::string text = reports::to_terminal(run);
  EXPECT_THAT(text, HasSubstr("# 10 cases: 4 equal, 4 within bounds, 0 failed"));
  EXPECT_THAT(text, HasSubstr(" 2 not run;"));
  EXPECT_THAT(text, HasSubstr("# selected: 10 of 5,010 cases\n"));
}

// All but those to paste, each of which has its own colon or is an id.
TEST(Terminal, SentencesGoOnInTheNextLineAndLinesToPasteStayWhole) {
  reports::Run run = example_run();
  run.cases[3].message = "rank 1 of 2 died of a signal, and says so in a sentence " +
                         std::string("that is longer than eighty columns of a terminal are wide");
  const std::string whole = reports::to_terminal(run);
  const std::string text = reports::to_terminal(run, {.columns = 80});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("      3  fp32")) continue;  // a row of the table
    if (line.find("equigrad run ") != std::string::npos ||
        line.find("Required.") != std::string::npos)
      EXPECT_THAT(whole, HasSubstr("\n" + line + "\n"));
    else
      EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_THAT(text, HasSubstr("in a sentence that is longer than\n      eighty columns"));
  EXPECT_THAT(text, HasSubstr("\n#     skipped, 13 not run; 414,239 elements"));
}

TEST(Terminal, AMissedFaultIsShownAsMissed) {
  reports::Run run = large_run(8, 0);
  run.self_checks[0].caught = false;
  EXPECT_THAT(reports::to_terminal(run), HasSubstr("was left out -> NOT CAUGHT: exact lane, "));
  EXPECT_THAT(reports::to_terminal(run), HasSubstr("\nVOID  "));
}

TEST(Terminal, ACaseThatComparedNothingIsShownAsEmpty) {
  reports::Run run = large_run(8, 0);
  run.cases[0].lanes.clear();
  EXPECT_THAT(reports::to_terminal(run), HasSubstr("\nempty  " + run.cases[0].id));
  EXPECT_THAT(reports::to_terminal(run), HasSubstr("\nINCONCLUSIVE  "));
}

TEST(Terminal, ManyGroupsAreShownByPrecisionAlone) {
  reports::Run run = large_run(512, 0);
  for (size_t i = 0; i < run.cases.size(); ++i)
    run.cases[i].dimensions["precision"] = "mode" + std::to_string(i % 7);
  const std::string text = reports::to_terminal(run);
  for (int i = 0; i < 7; ++i)
    EXPECT_THAT(text, HasSubstr("\n    all  mode" + std::to_string(i) + "        all "));
  EXPECT_THAT(text, Not(HasSubstr("\n      0  mode")));
}

}  // namespace
}  // namespace equigrad::conformance
