#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>

#include "reports/tests/example_run.hpp"
#include "reports/tests/golden.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/tests/xml.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;

// What is against the rules of Jenkins' schema, a line each.
std::string against_the_schema(const std::string& document) {
  const std::string path = testing::TempDir() + "junit-" + std::to_string(::getpid()) + ".xml";
  std::ofstream(path) << document;
  const char* python = std::getenv("EQUIGRAD_PYTHON");
  const std::string command = "'" + std::string(python == nullptr ? "python3" : python) + "' '" +
                              golden_path("../../python/judge_tests/junit_rules.py") + "' '" +
                              path + "' 2>&1";
  std::string said;
  const std::unique_ptr<FILE, int (*)(FILE*)> out(::popen(command.c_str(), "r"), ::pclose);
  for (int c = 0; out != nullptr && (c = std::fgetc(out.get())) != EOF;)
    said += static_cast<char>(c);
  std::remove(path.c_str());
  return said;
}

TEST(JUnit, ItIsAsTheSchemaOfJenkinsAsks) {
  reports::Run run = example_run();
  run.wall_s = 1234.56789, run.cases[0].seconds = 1e-5, run.cases[1].seconds = 0.123456;
  const std::string document = reports::to_junit(run);
  EXPECT_EQ(against_the_schema(document), "");
  EXPECT_THAT(document, HasSubstr(" time=\"1234.568\""));
  EXPECT_EQ(against_the_schema("<testsuites skipped='1' time='1e-05'><testcase/></testsuites>"),
            "testsuites has skipped\ntestcase in testsuites\ntime of testsuites is 1e-05\n"
            "testcase has no name\n");
}

TEST(JUnit, TheMessageIsTheCause) {
  const auto root = read_xml(reports::to_junit(example_run()));
  const auto message = [&](const char* element, std::size_t which) {
    return std::string(all(root, element).at(which).attribute("message").value());
  };
  EXPECT_EQ(message("failure", 0), "averaged twice over world 2");
  EXPECT_EQ(message("error", 0),
            "rank 1 of 2 died of signal 11 in step 2, backward of micro-batch 0");
  EXPECT_EQ(message("skipped", 0), "the model has one micro-batch of images only");
}

TEST(JUnit, TheDocumentIsTheOneAgreedOn) {
  expect_golden(reports::to_junit(example_run()), "junit.xml");
}

TEST(JUnit, TheCountsAreThoseOfTheElements) {
  const auto document = read_xml(reports::to_junit(example_run()));
  const auto root = document.document_element();
  EXPECT_EQ(root.attribute("tests").value(), std::to_string(all(root, "testcase").size()));
  EXPECT_EQ(root.attribute("failures").value(), std::to_string(all(root, "failure").size()));
  EXPECT_EQ(root.attribute("errors").value(), std::to_string(all(root, "error").size()));
  EXPECT_EQ(all(root, "failure").size(), 1u);
  EXPECT_EQ(all(root, "error").size(), 2u);
  EXPECT_EQ(all(root, "skipped").size(), 2u);
  for (const auto& suite : all(root, "testsuite")) {
    EXPECT_EQ(suite.attribute("tests").value(), std::to_string(all(suite, "testcase").size()));
    EXPECT_EQ(suite.attribute("failures").value(), std::to_string(all(suite, "failure").size()));
    EXPECT_EQ(suite.attribute("skipped").value(), std::to_string(all(suite, "skipped").size()));
  }
}

TEST(JUnit, NamesAreUniqueEvenWhereCasesShareOne) {
  reports::Run run = large_run(40, 0);
  run.cases[1].id = run.cases[2].id = run.cases[0].id;
  run.cases[3].id = run.cases[0].id + " (2)";
  std::set<std::string> names;
  const auto root = read_xml(reports::to_junit(run));
  for (const auto& one : all(root, "testcase")) names.insert(one.attribute("name").value());
  EXPECT_EQ(names.size(), run.cases.size() + run.self_checks.size());
}

TEST(JUnit, HostileTextStaysTextAndCannotCloseACdataSection) {
  reports::Run run = example_run();
  run.cases[2].id = run.cases[2].message = run.cases[2].replay = kHostile;
  run.cases[3].message = run.cases[5].message = kHostile;
  run.cases[2].files = {kHostile};
  for (auto& [name, value] : run.cases[2].dimensions) value = kHostile;
  run.self_checks[0].fault = kHostile;
  const auto root = read_xml(reports::to_junit(run));
  ASSERT_EQ(all(root, "failure").size(), 1u);
  EXPECT_THAT(text_in(all(root, "failure")[0]), HasSubstr("<script>alert(1)</script>\"'&]]>```"));
  EXPECT_TRUE(all(root, "script").empty());
}

TEST(JUnit, ARunThatIsPartialOrEmptyIsAnError) {
  reports::Run run = large_run(8, 0);
  EXPECT_TRUE(all(read_xml(reports::to_junit(run)), "error").empty());
  run.interrupted = true;
  const auto partial = read_xml(reports::to_junit(run));
  ASSERT_EQ(all(partial, "error").size(), 1u);
  EXPECT_THAT(text_in(all(partial, "error")[0]), HasSubstr("this report is partial"));
  run.interrupted = false;
  for (auto& one : run.cases) one.verdict = reports::Verdict::NotRun, one.lanes.clear();
  EXPECT_THAT(text_in(all(read_xml(reports::to_junit(run)), "error").at(0)),
              HasSubstr("nothing was compared"));
}

TEST(JUnit, AMissedFaultIsAFailure) {
  reports::Run run = large_run(8, 0);
  run.self_checks[1].caught = false;
  const auto root = read_xml(reports::to_junit(run));
  ASSERT_EQ(all(root, "failure").size(), 1u);
  EXPECT_THAT(text_in(all(root, "failure")[0]), HasSubstr("averaged_twice"));
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
  EXPECT_EQ(all(read_xml(reports::to_junit(run)), "failure").size(), 1u);
}

TEST(JUnit, KeptFilesAreAttached) {
  const auto root = read_xml(reports::to_junit(example_run()));
  ASSERT_EQ(all(root, "system-out").size(), 1u);
  EXPECT_THAT(text_in(all(root, "system-out")[0]),
              HasSubstr("[[ATTACHMENT|fail/Required.grad.zero3"));
  const auto placed = read_xml(reports::to_junit(example_run(), "out/report"));
  EXPECT_THAT(text_in(all(placed, "system-out")[0]),
              HasSubstr("[[ATTACHMENT|out/report/fail/Required.grad.zero3"));
}

}  // namespace
}  // namespace equigrad::conformance
