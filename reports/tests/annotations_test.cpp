#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "reports/tests/example_run.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

int64_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Annotations, ARunThatHeldSaysNothing) {
  EXPECT_EQ(reports::to_annotations(large_run(64, 0)), "");
}

TEST(Annotations, UpToNineFailuresAreShownInFull) {
  const std::string text = reports::to_annotations(large_run(90, 10));
  EXPECT_EQ(lines_of(text), 9);
  EXPECT_THAT(text, StartsWith("::error title=failed Required.grad.zero"));
}

TEST(Annotations, MoreThanNineFailuresGiveTenLinesAndACount) {
  const std::string text = reports::to_annotations(large_run(460, 10));
  EXPECT_EQ(lines_of(text), 10);
  EXPECT_THAT(text, EndsWith("::and 37 more, see the summary of this job\n"));
}

TEST(Annotations, AMissedFaultComesBeforeEveryFailure) {
  reports::Run run = large_run(460, 10);
  run.self_checks[0].caught = false;
  const std::string text = reports::to_annotations(run);
  EXPECT_THAT(text, StartsWith("::error title=equigrad void::"));
  EXPECT_EQ(lines_of(text), 10);
  EXPECT_THAT(text, EndsWith("::and 38 more, see the summary of this job\n"));
}

TEST(Annotations, WhatEndedTheRunIsToldFirst) {
  reports::Run run = example_run();
  run.failure = "no answer";
  EXPECT_THAT(reports::to_annotations(run),
              HasSubstr("::error title=equigrad broken::The run ended before its first case: no"));
}

TEST(Annotations, ARunThatComparedNothingIsReported) {
  reports::Run run = large_run(8, 0);
  run.cases.clear();
  EXPECT_THAT(reports::to_annotations(run), HasSubstr("nothing was compared"));
}

TEST(Annotations, AMessageCannotStartACommandOfItsOwn) {
  reports::Run run = example_run();
  run.cases.resize(3);
  run.cases[2].id = "a:b,c\n::error::d";
  run.cases[2].message = "100%\n::warning::x\r\n::stop-commands::y";
  run.cases[2].replay = "";
  EXPECT_EQ(reports::to_annotations(run),
            "::error title=failed a%3Ab%2Cc%0A%3A%3Aerror%3A%3Ad::100%25%0A::warning::x%0A::stop-"
            "commands::y\n");
}

}  // namespace
}  // namespace equigrad::conformance
