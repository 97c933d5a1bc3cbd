#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "reports/merge.hpp"
#include "reports/summary.hpp"
#include "reports/tests/example_run.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::IsEmpty;

std::vector<std::string> found(const std::string& page, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> out;
  for (std::sregex_iterator at(page.begin(), page.end(), regex), end; at != end; ++at) {
    out.push_back((*at)[1]);
  }
  return out;
}

size_t times(const std::string& page, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = page.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

// HasSubstr would print the whole page when it fails.
::testing::AssertionResult shows(const std::string& page, const std::string& part) {
  return ::testing::AssertionResult(page.find(part) != std::string::npos) << "looked for " << part;
}

// Tags that are opened more or less often than closed; rows and cells may leave their end out.
std::vector<std::string> unbalanced(const std::string& page) {
  std::vector<std::string> out;
  for (const char* tag :
       {"html",  "head",  "body",    "header",  "main",    "nav",   "section", "article", "table",
        "thead", "tbody", "caption", "details", "summary", "div",   "ul",      "li",      "dl",
        "dt",    "dd",    "p",       "h1",      "h2",      "h3",    "pre",     "code",    "span",
        "a",     "svg",   "b",       "style",   "script",  "title", "footer"}) {
    const std::string name = tag;
    if (times(page, "<" + name + " ") + times(page, "<" + name + ">") !=
        times(page, "</" + name + ">")) {
      out.push_back(tag);
    }
  }
  return out;
}

// The page without its script, which holds markup in strings.
std::string markup_of(const std::string& page) {
  const size_t begin = page.find("<script>");
  const size_t end = page.find("</script>");
  return page.substr(0, begin) + page.substr(end + std::string("</script>").size());
}

class HtmlOfAnyRun : public ::testing::TestWithParam<reports::Run> {};

TEST_P(HtmlOfAnyRun, TagsAreBalanced) {
  EXPECT_THAT(unbalanced(markup_of(reports::to_html(GetParam()))), IsEmpty());
}

TEST_P(HtmlOfAnyRun, EveryTagEndsBeforeTheNextBegins) {
  const std::string page = markup_of(reports::to_html(GetParam()));
  for (size_t at = 0; (at = page.find('<', at)) != std::string::npos; ++at) {
    const size_t next = page.find_first_of("<>", at + 1);
    ASSERT_TRUE(next != std::string::npos && page[next] == '>') << page.substr(at, 80);
  }
}

TEST_P(HtmlOfAnyRun, EveryIdIsGivenOnceAndEveryLinkHasATarget) {
  const std::string page = markup_of(reports::to_html(GetParam()));
  const std::vector<std::string> ids = found(page, "<[a-z0-9]+ id=\"?([^ \">]+)");
  const std::set<std::string> targets(ids.begin(), ids.end());
  EXPECT_EQ(targets.size(), ids.size());
  for (const std::string& link : found(page, "href=\"?#([^ \">]*)")) {
    EXPECT_TRUE(targets.contains(link)) << link;
  }
}

TEST_P(HtmlOfAnyRun, NothingIsFetchedFromAnywhere) {
  const std::string page = reports::to_html(GetParam());
  EXPECT_THAT(found(page, "(src=|@import|url\\()"), IsEmpty());
  EXPECT_EQ(times(page, "http"), 1u) << "only the name space of the icon";
}

TEST_P(HtmlOfAnyRun, EveryTableHasACaptionAndScopedHeaders) {
  const std::string page = markup_of(reports::to_html(GetParam()));
  EXPECT_EQ(times(page, "<table"), times(page, "<caption"));
  EXPECT_THAT(found(page, "(<th(?![^>]*scope)[ >])"), IsEmpty());
}

TEST_P(HtmlOfAnyRun, EveryCaseThatWentWrongIsOnThePageAndLinked) {
  const std::string page = reports::to_html(GetParam());
  for (const reports::Case* one : reports::wrong_cases(GetParam())) {
    EXPECT_EQ(times(page, "id=" + reports::anchor(one->id) + ">") +
                  times(page, "id=\"" + reports::anchor(one->id) + "\""),
              1u)
        << one->id;
  }
}

TEST_P(HtmlOfAnyRun, EveryCaseIsCountedInARowOfTheList) {
  const std::string page = reports::to_html(GetParam());
  size_t cases = 0;
  for (const std::string& count : found(page, "<td>([0-9]+)<td>[0-9.]+ s<td class"))
    cases += std::stoul(count);
  EXPECT_EQ(cases, GetParam().cases.size());
}

reports::Run hostile_run() {
  reports::Run run = example_run();
  for (reports::Case& one : run.cases) {
    one.message = one.replay = kHostile;
    one.files = {kHostile, "javascript:alert(1)", "../fine/path.bin"};
    one.id += kHostile;
    for (auto& [name, value] : one.dimensions) value += kHostile;
    for (reports::Lane& lane : one.lanes) {
      lane.name += kHostile;
      if (lane.worst) lane.worst->tensor = kHostile;
    }
  }
  run.self_checks[0] = {kHostile, kHostile, true, kHostile};
  run.memory[0].category = run.memory[0].precision = kHostile;
  run.not_run = {{kHostile, 1}};
  run.command = kHostile;
  reports::Environment& env = run.environment;
  for (std::string* text : {&env.version, &env.commit, &env.torch, &env.compiler, &env.device,
                            &env.cpu, &env.os, &env.time}) {
    *text = kHostile;
  }
  return run;
}

std::string name_of(const ::testing::TestParamInfo<reports::Run>& info) {
  constexpr std::array kNames = {"Example", "Held", "Failing", "Hostile", "Empty"};
  return kNames.at(info.index);
}

INSTANTIATE_TEST_SUITE_P(Runs, HtmlOfAnyRun,
                         ::testing::Values(example_run(), large_run(512, 0), large_run(512, 60),
                                           hostile_run(), reports::Run{}),
                         name_of);

TEST(Html, HostileTextIsShownNotObeyed) {
  const std::string page = markup_of(reports::to_html(hostile_run()));
  EXPECT_TRUE(shows(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_EQ(times(page, "<script"), 0u);
  EXPECT_EQ(times(page, "<!--"), 0u);
  EXPECT_FALSE(shows(page, "href=\"javascript"));
  EXPECT_TRUE(shows(page, "href=\"../fine/path.bin\""));
  EXPECT_EQ(reports::clean(page), page) << "no control characters, no broken UTF-8";
}

TEST(Html, TheBannerSaysTheOutcomeAndWhatWasNotRun) {
  reports::Run run = example_run();
  run.not_run[reports::kNotSelected] = 40;
  const std::string page = reports::to_html(run);
  EXPECT_TRUE(shows(page, "<header class=\"failed\">"));
  EXPECT_TRUE(shows(page, "</span> Failed</h1>\n<p>1 case of 5 failed; 2 more crashed or"));
  EXPECT_TRUE(shows(page, "<a href=\"#not-run\">not run</a></dt><dd>13</dd>"));
  EXPECT_TRUE(shows(page, "Selected: <a href=\"#not-run\">19 of 59 cases</a>."));
  EXPECT_TRUE(shows(page, "3 of 3 planted faults</a> caught"));
}

TEST(Html, TheBannerSaysWhatEndedTheRunAndItIsInert) {
  reports::Run run = example_run();
  run.failure = "no <b>answer</b>";
  EXPECT_TRUE(shows(reports::to_html(run), "first case: no &lt;b&gt;answer"));
}

std::string matrix_of(const reports::Run& run) {
  const std::string page = reports::to_html(run);
  const size_t begin = page.find("<section id=\"matrix\"");
  return page.substr(begin, page.find("</section>", begin) - begin);
}

TEST(Html, PrecisionsAndStylesWithTheSameVerdictsAreOneRowOfTheMatrix) {
  const std::string matrix = matrix_of(large_run(512, 0));
  EXPECT_EQ(times(matrix, "<tr><th scope=\"row"), 4u * 2) << "two rows for each stage";
  EXPECT_EQ(times(matrix, "<th scope=\"row\">fp32</th>"), 4u);
  EXPECT_EQ(times(matrix, "<th scope=\"row\">bf16</th>"), 4u) << "within its bound";
  EXPECT_EQ(times(matrix, "all 4"), 8u) << "all styles of them";
  EXPECT_EQ(times(matrix, "<td class=\"m0"), 4u * 4) << "a cell for each number of ranks";
}

TEST(Html, AWrongCaseHasARowOfTheMatrixAndNoCaseIsCountedTwice) {
  reports::Run run = large_run(512, 0);
  fail(run.cases[42]);
  const std::string matrix = matrix_of(run);
  EXPECT_EQ(times(matrix, "<td class=\"bad\"><a href=\"#" + run.cases[42].id + "\""), 1u);
  int cases = 0;
  for (const std::string& count : found(matrix, "title=\"stage [^:]*: ([0-9,]+) case"))
    cases += std::stoi(count);
  EXPECT_EQ(cases, 512);
}

TEST(Html, FailuresOfOneCauseAreOneArticleWithWhatTheyHaveInCommon) {
  reports::Run run = large_run(512, 0);
  int wrong = 0;
  for (reports::Case& one : run.cases)
    if (one.dimensions["stage"] == "2" && one.dimensions["precision"] == "bf16") fail(one), ++wrong;
  const std::string page = reports::to_html(run);
  EXPECT_EQ(wrong, 64);
  EXPECT_EQ(times(page, "<article "), 1u);
  EXPECT_TRUE(shows(page,
                    "<a href=\"#cause-1\">averaged twice over world 2</a> <span "
                    "class=\"note\">64 cases of 512, only with stage 2; precision bf16. No "
                    "such case held.</span>"));
  EXPECT_TRUE(shows(page, "<summary>63 more cases of this cause</summary>"));
}

TEST(Html, NineThousandCasesStayUnderTheLimitAndAreAllListed) {
  reports::Run run = large_run(9000, 0);
  for (size_t i = 0; i < run.cases.size(); ++i) run.cases[i].id += std::to_string(i);
  const std::string page = reports::to_html(run);
  EXPECT_LT(page.size(), reports::kPageBytes);
  EXPECT_EQ(times(page, "<tr id="), 0u) << "none of them went wrong";
  EXPECT_FALSE(shows(page, "did not fit"));
}

TEST(Html, WhatDoesNotFitIsCounted) {
  reports::Run run = large_run(20000, 3);
  for (size_t i = 0; i < run.cases.size(); ++i) {
    run.cases[i].id += std::to_string(i);
    run.cases[i].message.append(3000, 'x');
  }
  const std::string page = reports::to_html(run);
  EXPECT_LT(page.size(), reports::kPageBytes);
  std::vector<std::string> left =
      found(page, "<p>([0-9,]+) more cases that went wrong did not fit on this page");
  ASSERT_EQ(left.size(), 1u);
  const size_t shown = times(page, "<details id=\"Required") + times(page, "<p id=\"Required");
  EXPECT_EQ(left[0], reports::grouped(static_cast<int64_t>(6666 - shown)));
  left = found(page, "<p>([0-9,]+) more cases? did not fit on this page");
  ASSERT_EQ(left.size(), 1u);
  int64_t listed = 0;
  for (const std::string& count : found(page, "<td>([0-9]+)<td>[0-9.]+ s<td class"))
    listed += std::stol(count);
  EXPECT_EQ(left[0], reports::grouped(20000 - listed));
}

TEST(Html, ALongMessageIsCutWithANoteAndBetweenCharacters) {
  for (const char* front : {"", "x"}) {
    reports::Run run = example_run();
    run.cases[2].message = front;
    for (int i = 0; i < 10000; ++i) run.cases[2].message += "ü";
    const std::string page = reports::to_html(run);
    EXPECT_TRUE(shows(page, " more bytes in the JSON file]"));
    EXPECT_EQ(times(page, "\xEF\xBF\xBD"), 0u);
  }
}

}  // namespace
}  // namespace equigrad::conformance
