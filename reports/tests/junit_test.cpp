#include "reports/junit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "reports/tests/example_run.hpp"
#include "reports/tests/golden.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/tests/markup.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;

TEST(JUnit, TheDocumentIsTheOneAgreedOn) {
  expect_golden(reports::to_junit(example_run()), "junit.xml");
}

TEST(JUnit, TheCountsAreThoseOfTheElements) {
  const Element root = read_markup(reports::to_junit(example_run()));
  EXPECT_EQ(root.attributes.at("tests"), std::to_string(root.all("testcase").size()));
  EXPECT_EQ(root.attributes.at("failures"), std::to_string(root.all("failure").size()));
  EXPECT_EQ(root.attributes.at("errors"), std::to_string(root.all("error").size()));
  EXPECT_EQ(root.attributes.at("skipped"), std::to_string(root.all("skipped").size()));
  EXPECT_EQ(root.all("failure").size(), 1u);
  EXPECT_EQ(root.all("error").size(), 2u);
  EXPECT_EQ(root.all("skipped").size(), 2u);
  for (const Element* suite : root.all("testsuite")) {
    EXPECT_EQ(suite->attributes.at("tests"), std::to_string(suite->all("testcase").size()));
    EXPECT_EQ(suite->attributes.at("failures"), std::to_string(suite->all("failure").size()));
  }
}

TEST(JUnit, NamesAreUniqueEvenWhereCasesShareOne) {
  reports::Run run = large_run(40, 0);
  run.cases[1].id = run.cases[2].id = run.cases[0].id;
  run.cases[3].id = run.cases[0].id + " (2)";
  std::set<std::string> names;
  const Element root = read_markup(reports::to_junit(run));
  for (const Element* one : root.all("testcase")) names.insert(one->attributes.at("name"));
  EXPECT_EQ(names.size(), run.cases.size() + run.self_checks.size());
}

TEST(JUnit, HostileTextStaysTextAndCannotCloseACdataSection) {
  reports::Run run = example_run();
  run.cases[2].id = run.cases[2].message = run.cases[2].replay = kHostile;
  run.cases[3].message = run.cases[5].message = kHostile;
  run.cases[2].files = {kHostile};
  for (auto& [name, value] : run.cases[2].dimensions) value = kHostile;
  run.self_checks[0].fault = kHostile;
  const Element root = read_markup(reports::to_junit(run));
  ASSERT_EQ(root.all("failure").size(), 1u);
  EXPECT_THAT(root.all("failure")[0]->text, HasSubstr("<script>alert(1)</script>\"'&]]>```"));
  EXPECT_TRUE(root.all("script").empty());
}

TEST(JUnit, AMissedFaultIsAFailure) {
  reports::Run run = large_run(8, 0);
  run.self_checks[1].caught = false;
  const Element root = read_markup(reports::to_junit(run));
  ASSERT_EQ(root.all("failure").size(), 1u);
  EXPECT_THAT(root.all("failure")[0]->text, HasSubstr("averaged_twice"));
}

TEST(JUnit, WhatEndedTheRunIsAnError) {
  reports::Run run = example_run();
  run.failure = "no <answer>";
  const std::string text = reports::to_junit(run);
  EXPECT_THAT(text, HasSubstr("message=\"no &lt;answer&gt;\" type=\"crashed\""));
  EXPECT_THAT(text,
              HasSubstr("<testsuite name=\"self_check\" tests=\"4\" failures=\"0\" errors=\"1\""));
}

TEST(JUnit, ACaseThatComparedNothingIsAFailure) {
  reports::Run run = large_run(8, 0);
  run.cases[0].lanes.clear();
  EXPECT_EQ(read_markup(reports::to_junit(run)).all("failure").size(), 1u);
}

TEST(JUnit, KeptFilesAreAttached) {
  const Element root = read_markup(reports::to_junit(example_run()));
  ASSERT_EQ(root.all("system-out").size(), 1u);
  EXPECT_THAT(root.all("system-out")[0]->text, HasSubstr("[[ATTACHMENT|fail/Required.grad.zero3"));
}

}  // namespace
}  // namespace equigrad::conformance
