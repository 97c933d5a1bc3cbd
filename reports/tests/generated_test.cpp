// Cases that were drawn: what the terminal, the page and run.json say of them and of what they had.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "reports/json.hpp"
#include "reports/parts.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/tests/schema.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

reports::Run run_with_generated(int64_t failed) {
  reports::Run run = large_run(8, 0);
  for (int64_t i = 0; i < failed; ++i) fail(run.cases[static_cast<std::size_t>(i)]);
  run.generated = {.seed = 77,
                   .cases = 3412,
                   .failed = failed,
                   .workloads = 427,
                   .replaced = 4,
                   .compared = 1'234'567,
                   .pairs = 89'012,
                   .wall_s = 25.5,
                   .axes = {{"stage", {{"0", 1200}, {"3", 2212}}, {"1", "2"}},
                            {"hook", {{"<none>", 3412}}, {"keeps & replaces"}}}};
  return run;
}

TEST(Generated, TheLineSaysWhatWasDrawnAndWhetherItHeld) {
  auto run = run_with_generated(0);
  EXPECT_EQ(reports::generated_line(run),
            "generated: HELD  3,412 cases of 427 workloads, 0 failed, 1,234,567 elements compared, "
            "in 25.5 s; 89,012 pairs of values occurred, 3 known values did not; seed 77");
  EXPECT_THAT(reports::generated_line(run_with_generated(2)),
              AllOf(StartsWith("generated: FAILED  3,412 cases "), HasSubstr(", 2 failed, ")));
  run.generated->cases = 0;
  EXPECT_THAT(reports::generated_line(run), StartsWith("generated: INCONCLUSIVE  0 cases "));
  run.self_checks[0].caught = false;
  EXPECT_THAT(reports::generated_line(run), StartsWith("generated: VOID  "));
  EXPECT_EQ(reports::generated_line(large_run(8, 0)), "");
}

TEST(Generated, EveryWriterSaysTheLine) {
  const auto run = run_with_generated(0);
  for (const auto& text :
       {reports::to_terminal(run), reports::to_html(run), reports::to_markdown(run)})
    EXPECT_THAT(text, HasSubstr("generated: HELD  3,412 cases of 427 workloads, 0 failed"));
  EXPECT_THAT(reports::to_terminal(large_run(8, 0)), Not(HasSubstr("generated")));
  EXPECT_THAT(reports::to_html(large_run(8, 0)), HasSubstr("No case of this run was drawn."));
}

// Those that failed are cases of the run, which it counts anyway.
TEST(Generated, WhatHeldIsCountedWithTheCasesOfTheRun) {
  const auto without = reports::counts(large_run(8, 0));
  const auto sum = reports::counts(run_with_generated(2));
  EXPECT_EQ(sum.failed, 2);
  EXPECT_EQ(sum.total(), without.total() + 3412 - 2);
  EXPECT_EQ(sum.compared, without.compared + 1'234'567);
  EXPECT_THAT(reports::to_terminal(run_with_generated(0)), HasSubstr(" 3,416 equal"));
}

TEST(Generated, ThePageListsWhatEveryAxisHadAndNeverHad) {
  const auto page = reports::to_html(run_with_generated(0));
  const auto begin = page.find("<section id=\"generated\"");
  const auto section = page.substr(begin, page.find("</section>", begin) - begin);
  EXPECT_THAT(section, HasSubstr("stage"));
  EXPECT_THAT(section, HasSubstr(">0: 1,200, 3: 2,212<"));
  EXPECT_THAT(section, HasSubstr(">1, 2<"));
  EXPECT_THAT(section, HasSubstr(">&lt;none&gt;: 3,412<"));
  EXPECT_THAT(section, HasSubstr(">keeps &amp; replaces<"));
}

TEST(Generated, TheRecordKeepsToTheSchemaAndIsReadBack) {
  const auto text = reports::to_json(run_with_generated(2));
  EXPECT_THAT(schema_problems("run.schema.json", {text}), Each(""));
  EXPECT_EQ(reports::to_json(reports::from_json(text)), text);
  const auto read = *reports::from_json(text).generated;
  EXPECT_EQ(std::tuple(read.seed, read.cases, read.failed, read.workloads, read.replaced,
                       read.compared, read.pairs, read.wall_s),
            std::tuple(77, 3412, 2, 427, 4, 1'234'567, 89'012, 25.5));
  ASSERT_EQ(read.axes.size(), 2u);
  EXPECT_EQ(read.axes[0].name, "stage");
  EXPECT_EQ(read.axes[0].cases.at("3"), 2212);
  EXPECT_THAT(read.axes[0].never, ElementsAre("1", "2"));
}

TEST(Generated, TheSchemaRefusesARecordWithoutOneOfItsFields) {
  const auto good = nlohmann::json::parse(reports::to_json(run_with_generated(0)));
  std::vector<std::string> bad;
  for (const std::string parent : {"/generated", "/generated/axes/0"}) {
    const nlohmann::json::json_pointer at(parent);
    for (const auto& [key, value] : good.at(at).items()) {
      auto less = good;
      less.at(at).erase(key);
      bad.push_back(less.dump());
    }
    auto more = good;
    more.at(at)["other"] = 1;
    bad.push_back(more.dump());
  }
  EXPECT_EQ(bad.size(), 9u + 3 + 2);
  EXPECT_THAT(schema_problems("run.schema.json", bad), Each(Not("")));
}

}  // namespace
}  // namespace equigrad::conformance
