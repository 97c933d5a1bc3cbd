// The contract's part of the reports: counted by stage, in every writer, and hostile text inert.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/json.hpp"
#include "reports/summary.hpp"
#include "reports/tests/example_run.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

reports::Case of_contract(const std::string& section, const std::string& name, int stage) {
  auto one = example_case(stage, "fp32", 2, 1, "off", "sgd", "gpt", "contract");
  one.id = "Contract." + section + "." + name + ".zero" + std::to_string(stage);
  one.dimensions["section"] = section;
  one.dimensions["case"] = name;
  return one;
}

// Section 2 has two cases, of which one fails at stage 3; section 8 has one; section 9 has none.
reports::Run contract_run() {
  auto run = example_run();
  run.statements = {{"2", "", "Every backward adds", {}},
                    {"2", "two_losses", "two losses add", {"trap 1"}},
                    {"2", "siamese", "an engine is used twice", {}},
                    {"8", "", "step() acts at the boundary", {}},
                    {"8", "step_twice", "a second step is refused", {}},
                    {"9", "", "nothing is written", {}}};
  for (const int stage : {0, 3})
    for (const char* name : {"two_losses", "siamese"})
      run.cases.push_back(of_contract("2", name, stage));
  fail(run.cases.back());
  run.cases.push_back(of_contract("8", "step_twice", 3));
  return run;
}

TEST(Contract, CountsCasesByStage) {
  const auto run = contract_run();
  const auto rows = reports::contract_rows(run);
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(reports::held_text(rows[0].stages.at("0")), "2");
  EXPECT_EQ(reports::held_text(rows[0].stages.at("3")), "1/2");
  EXPECT_EQ(reports::held_text(rows[0].sum), "3/4");
  EXPECT_EQ(reports::held_text(rows[1].stages.at("3")), "1");
  EXPECT_EQ(reports::held_text(rows[2].stages.at("3")), "0/1");
  EXPECT_FALSE(rows[3].stages.contains("0"));
  EXPECT_EQ(reports::held_text(rows[5].sum), "-");
}

TEST(Contract, ACaseThatComparedNothingDoesNotHold) {
  auto run = contract_run();
  run.cases.back().lanes = {{"exact", reports::Verdict::Equal, 0, 0, 0, {}}};
  const auto rows = reports::contract_rows(run);
  EXPECT_EQ(reports::held_text(rows[3].stages.at("3")), "0/1");
}

TEST(Contract, TheTerminalHasALineForEachSection) {
  const auto text = reports::to_terminal(contract_run());
  EXPECT_THAT(text, HasSubstr("cases that held, of those run, at stage 0 3"));
  EXPECT_THAT(text, HasSubstr("  FAILED         2      1/2   2. Every backward adds\n"));
  EXPECT_THAT(text, HasSubstr("  held           -        1   8. step() acts at the boundary\n"));
  EXPECT_THAT(text, HasSubstr("  1 other line of it: no case was asked for\n"));
  EXPECT_THAT(reports::to_terminal(example_run()), Not(HasSubstr("contract")));
}

TEST(Contract, ThePageHasARowForEachCaseAndHostileTextIsInert) {
  auto run = contract_run();
  run.statements[1].sentence = run.statements[1].name = kHostile;
  run.statements[1].answers = {kHostile};
  const auto page = reports::to_html(run);
  EXPECT_THAT(page, HasSubstr("an engine is used twice"));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert(1)")));
  EXPECT_THAT(reports::to_html(contract_run()),
              HasSubstr("<code>two_losses</code><br>Would have caught: trap 1"));
}

TEST(Contract, StatementsSurviveJson) {
  const auto run = contract_run();
  const auto text = reports::to_json(run);
  EXPECT_THAT(text, HasSubstr("\"executed\": 2"));
  const auto read = reports::from_json(text);
  ASSERT_EQ(read.statements.size(), run.statements.size());
  EXPECT_EQ(read.statements[1].answers, run.statements[1].answers);
  EXPECT_EQ(reports::to_json(read), text);
}

}  // namespace
}  // namespace equigrad::conformance
