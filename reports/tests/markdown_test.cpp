#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "reports/tests/example_run.hpp"
#include "reports/tests/golden.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Markdown, TheSummaryIsTheOneAgreedOn) {
  expect_golden(reports::to_markdown(example_run()), "summary.md");
}

TEST(Markdown, ASummaryThatIsTooLongIsCutAndSaysSo) {
  reports::Run run = large_run(10000, 2);
  for (std::size_t i = 1; i < run.cases.size(); i += 2)  // each a cause of its own
    run.cases[i].message = std::string(i / 1000 + 1, 'a') + std::string(i / 10 % 100 + 1, 'b') +
                           std::string(i % 10, 'c') + "\n" + std::string(400, 'd');
  const std::string text = reports::to_markdown(run);
  EXPECT_LE(text.size(), 900u * 1024);
  EXPECT_GE(text.size(), 890u * 1024);
  std::smatch match;
  ASSERT_TRUE(std::regex_search(text, match, std::regex("\nand ([0-9,]+) more, see run.json\n$")));
  size_t shown = 0;
  for (size_t at = 0; (at = text.find("\n### ", at)) != std::string::npos; ++at) ++shown;
  EXPECT_EQ(match[1].str(), reports::grouped(static_cast<int64_t>(5000 - shown)));
}

TEST(Markdown, ACauseIsOneSectionWithItsCasesByName) {
  const auto sections = [](const std::string& text) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find("\n### ", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const auto few = large_run(20, 2), many = large_run(200, 2);
  const std::string text = reports::to_markdown(few);
  EXPECT_EQ(sections(text), 1u);
  EXPECT_THAT(text, HasSubstr("<details><summary>9 more</summary>\n\n- "));
  for (std::size_t i = 1; i < few.cases.size(); i += 2)
    EXPECT_THAT(text, HasSubstr("\n" + std::string(i == 1 ? "" : "- ") +
                                reports::escape_markdown(few.cases[i].id) + "\n"));
  EXPECT_EQ(sections(reports::to_markdown(many)), 1u);
  EXPECT_THAT(reports::to_markdown(many), HasSubstr("\n- and 79 others\n"));
  EXPECT_THAT(reports::to_markdown(many, 5000), EndsWith("\nand 100 more, see run.json\n"));
}

TEST(Markdown, EvenAHopelesslySmallLimitIsKept) {
  for (const size_t limit : {100u, 300u, 1000u, 3000u}) {
    EXPECT_LE(reports::to_markdown(large_run(100, 1), limit).size(), limit);
  }
}

TEST(Markdown, ForeignTextCannotLeaveItsCell) {
  reports::Run run = example_run();
  run.not_run = {{"a | b\nc <img src=x> [link](javascript:x) `code` *bold*", 1}};
  EXPECT_THAT(reports::to_markdown(run),
              HasSubstr("| not run: a \\| b c &lt;img src=x&gt; \\[link\\]\\(javascript:x\\) "
                        "\\`code\\` \\*bold\\* | 1 |\n"));
}

TEST(Markdown, WhatEndedTheRunIsToldAndInert) {
  reports::Run run = example_run();
  run.failure = "no <b>answer</b>";
  EXPECT_THAT(reports::to_markdown(run), HasSubstr("no &lt;b&gt;answer"));
}

TEST(Markdown, AMessageCannotCloseItsCodeBlock) {
  reports::Run run = example_run();
  run.cases[2].message = "before\n````\n<script>after";
  EXPECT_THAT(reports::to_markdown(run),
              HasSubstr("\n`````text\nbefore\n````\n<script>after\nreplay: "));
}

TEST(Markdown, ARunThatHeldHasNoFailures) {
  const std::string text = reports::to_markdown(large_run(64, 0));
  EXPECT_THAT(text, StartsWith("## Equigrad: held\n"));
  EXPECT_THAT(text, Not(HasSubstr("###")));
  EXPECT_THAT(text, Not(EndsWith("run.json\n")));
}

}  // namespace
}  // namespace equigrad::conformance
