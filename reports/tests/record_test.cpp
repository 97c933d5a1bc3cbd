#include "reports/record.hpp"

#include <gtest/gtest.h>

#include "reports/tests/example_run.hpp"
#include "reports/tests/large_run.hpp"

namespace equigrad::conformance {
namespace {

using reports::Outcome;
using reports::Verdict;

reports::Run held_run() { return large_run(32, 0); }

TEST(Record, ARunHoldsWhenEveryCaseDoes) {
  EXPECT_EQ(reports::outcome(held_run()), Outcome::Held);
  EXPECT_EQ(reports::exit_code(held_run()), 0);
}

TEST(Record, OneFailedCaseFailsTheRun) {
  reports::Run run = held_run();
  fail(run.cases[5]);
  EXPECT_EQ(reports::outcome(run), Outcome::Failed);
  EXPECT_EQ(reports::exit_code(run), 1);
}

TEST(Record, CrashesAndTimeOutsAloneAreNotFailures) {
  for (const Verdict verdict : {Verdict::Crashed, Verdict::TimedOut}) {
    reports::Run run = held_run();
    run.cases[5].verdict = verdict;
    EXPECT_EQ(reports::outcome(run), Outcome::Broken);
    EXPECT_EQ(reports::exit_code(run), 3);
    fail(run.cases[6]);
    EXPECT_EQ(reports::exit_code(run), 1);
  }
}

TEST(Record, SkippedCasesDoNotFailARun) {
  reports::Run run = held_run();
  run.cases[5].verdict = Verdict::Skipped;
  run.cases[5].lanes.clear();
  EXPECT_EQ(reports::exit_code(run), 0);
  EXPECT_EQ(reports::counts(run).skipped, 1);
}

TEST(Record, AMissedFaultMakesTheRunVoidEvenIfAllElseHeld) {
  reports::Run run = held_run();
  run.self_checks[1].caught = false;
  EXPECT_EQ(reports::outcome(run), Outcome::Void);
  EXPECT_EQ(reports::exit_code(run), 1);
}

// Whatever its planted faults, of which there are none where it fails by itself.
TEST(Record, AnEngineThatFailsBeforeAFaultIsPlantedFailsTheRun) {
  reports::Run run = held_run();
  run.self_checks.clear();
  EXPECT_EQ(reports::outcome(run), Outcome::Void);
  run.engine_failure = "Required.grad.x: step 1, gradient of head.bias";
  EXPECT_EQ(reports::outcome(run), Outcome::Failed);
  EXPECT_EQ(reports::exit_code(run), 1);
  run.failure = "no answer";
  EXPECT_EQ(reports::outcome(run), Outcome::Broken);
}

TEST(Record, FewerThanThreePlantedFaultsMakeTheRunVoid) {
  reports::Run run = held_run();
  run.self_checks.pop_back();
  EXPECT_EQ(reports::outcome(run), Outcome::Void);
}

TEST(Record, ARunThatComparedNothingIsInconclusive) {
  reports::Run run = held_run();
  run.cases.clear();
  EXPECT_EQ(reports::outcome(run), Outcome::Inconclusive);
  EXPECT_EQ(reports::exit_code(run), 4);
}

TEST(Record, OnePassingLaneWithNothingInItMakesTheRunInconclusive) {
  reports::Run run = held_run();
  run.cases[5].lanes[1].compared = 0;
  EXPECT_EQ(reports::counts(run).vacuous, 1);
  EXPECT_EQ(reports::exit_code(run), 4);
  run.cases[5].lanes[1].verdict = Verdict::Skipped;
  EXPECT_EQ(reports::exit_code(run), 0);
  run.cases[5].lanes.clear();
  EXPECT_EQ(reports::exit_code(run), 4);
}

TEST(Record, AnInterruptedRunSaysSoBeforeAnythingElse) {
  reports::Run run = held_run();
  fail(run.cases[5]);
  run.interrupted = true;
  EXPECT_EQ(reports::outcome(run), Outcome::Interrupted);
  EXPECT_EQ(reports::exit_code(run), 130);
  run.signal = 15;
  EXPECT_EQ(reports::exit_code(run), 143);
  run.failure = "no answer";
  EXPECT_EQ(reports::exit_code(run), 143);
  run.interrupted = false;
  EXPECT_EQ(reports::outcome(run), Outcome::Broken);
  EXPECT_EQ(reports::exit_code(run), 3);
}

TEST(Record, CountsAddUp) {
  const reports::Counts sum = reports::counts(example_run());
  EXPECT_EQ(sum.equal, 1);
  EXPECT_EQ(sum.within, 1);
  EXPECT_EQ(sum.failed, 1);
  EXPECT_EQ(sum.crashed, 1);
  EXPECT_EQ(sum.timed_out, 1);
  EXPECT_EQ(sum.skipped, 1);
  EXPECT_EQ(sum.not_run, 1 + 12);
  EXPECT_EQ(sum.executed(), 5);
  EXPECT_EQ(sum.total(), 19);
  EXPECT_EQ(sum.compared, 7 * 59177);
}

TEST(Record, DifferencesInTheBoundedLaneAreNotCountedAsDifferingBits) {
  EXPECT_EQ(reports::counts(large_run(64, 0)).differing, 0);
  EXPECT_EQ(reports::counts(large_run(64, 64)).differing, 3072);
}

}  // namespace
}  // namespace equigrad::conformance
