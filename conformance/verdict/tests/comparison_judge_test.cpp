// Runs with known losses have the verdict that they must have.
#include "conformance/verdict/comparison_judge.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

namespace equigrad::conformance {
namespace {

using reports::ComparedRun;
using reports::Comparison;
using reports::ComparisonOutcome;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 200, kFinal = 20;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A loss that falls from 4 to `end` in the first half and stays there.
ComparedRun falling(int configuration, uint64_t seed, double end) {
  ComparedRun run;
  run.configuration = configuration;
  run.seed = seed;
  run.complete = true;
  for (int64_t step = 0; step < kSteps; ++step) {
    const double left = static_cast<double>(kSteps - 2 * step) / kSteps;
    run.losses.push_back(end + (4 - end) * std::max(0.0, left));
  }
  run.step_s = configuration == 0 ? 0.01 : 0.02;
  run.held_bytes = configuration == 0 ? 1000 : 500;
  summarize(run, kFinal);
  return run;
}

// Pairs whose final losses are 2 + a little and 2 + a little + the difference.
Comparison pairs_of(const std::vector<double>& differences) {
  Comparison comparison;
  comparison.steps = kSteps;
  comparison.final_steps = kFinal;
  comparison.margin = 0.05;
  for (std::size_t i = 0; i < differences.size(); ++i) {
    const uint64_t seed = 10 + i;
    const double end = 2 + 0.25 * static_cast<double>(i);  // far apart, as seeds are
    comparison.seeds.push_back(seed);
    comparison.runs.push_back(falling(0, seed, end));
    comparison.runs.push_back(falling(1, seed, end + differences[i]));
  }
  return comparison;
}

Comparison concluded(Comparison comparison, const std::optional<Ending>& ended = std::nullopt) {
  conclude(comparison, ended);
  return comparison;
}

TEST(ComparisonJudge, LossesAreAveragedOverTheStepsTheyAreOf) {
  ComparedRun run;
  run.losses = {8, 6, 3, 1};
  summarize(run, 2);
  EXPECT_EQ(run.final_loss, 2);
  EXPECT_EQ(run.mean_loss, 4.5);
  EXPECT_EQ(run.drop, 5);
}

TEST(ComparisonJudge, ASmallDifferenceIsEquivalentEvenWhereItIsSure) {
  const auto found = concluded(pairs_of({0.01, 0.012, 0.008, 0.011, 0.009}));
  EXPECT_EQ(found.outcome, ComparisonOutcome::Equivalent) << found.reason;
  EXPECT_LT(found.equivalence.p_no_difference, 0.05);
  EXPECT_THAT(found.reason, HasSubstr("within the margin of 0.0500 nats: B - A is +0.0100 ["));
  EXPECT_EQ(found.pairs, 5);
}

TEST(ComparisonJudge, PairsAreComparedNotMeans) {
  // Seeds are 0.25 apart, so unpaired runs could tell nothing.
  EXPECT_EQ(concluded(pairs_of({0.001, -0.001, 0.001, -0.001})).outcome,
            ComparisonOutcome::Equivalent);
}

TEST(ComparisonJudge, ALargeDifferenceIsDifferentInBothDirections) {
  for (const double sign : {1.0, -1.0}) {
    const auto found = concluded(pairs_of({sign * 0.1, sign * 0.12, sign * 0.11}));
    EXPECT_EQ(found.outcome, ComparisonOutcome::Different) << found.reason;
    EXPECT_EQ(found.equivalence.low > 0, sign > 0);
  }
}

TEST(ComparisonJudge, WhatIsScatteredIsInconclusive) {
  const auto found = concluded(pairs_of({0.2, -0.2, 0.1, -0.15, 0.03}));
  EXPECT_EQ(found.outcome, ComparisonOutcome::Inconclusive);
  EXPECT_THAT(found.reason, HasSubstr("More seeds would tell."));
}

TEST(ComparisonJudge, TheMarginDecides) {
  auto narrow = pairs_of({0.01, 0.012, 0.008, 0.011, 0.009});
  narrow.margin = 0.01;
  EXPECT_EQ(concluded(narrow).outcome, ComparisonOutcome::Different);
}

TEST(ComparisonJudge, TwoThatStandStillSayNothing) {
  auto still = pairs_of({0, 0, 0});
  for (auto& run : still.runs) {
    run.losses.assign(kSteps, 4.0);
    summarize(run, kFinal);
  }
  const auto found = concluded(still);
  EXPECT_EQ(found.outcome, ComparisonOutcome::Inconclusive);
  EXPECT_THAT(found.reason, HasSubstr("A has not learned"));
  auto one = pairs_of({0, 0, 0});
  for (auto& run : one.runs)
    if (run.configuration == 1) run.drop = -run.drop;
  EXPECT_THAT(concluded(one).reason, HasSubstr("B has not learned"));
  auto worse = pairs_of({1, 1.01, 0.99});  // a difference is one, learned or not
  for (auto& run : worse.runs)
    if (run.configuration == 1) run.drop = -run.drop;
  EXPECT_EQ(concluded(worse).outcome, ComparisonOutcome::Different);
}

TEST(ComparisonJudge, AConfigurationThatDivergesAloneIsDifferent) {
  auto comparison = pairs_of({0, 0, 0});
  comparison.runs[3].losses[7] = kNan;
  const auto found = concluded(comparison);
  EXPECT_EQ(found.outcome, ComparisonOutcome::Different);
  EXPECT_EQ(found.reason,
            "B diverged with seed 11: its loss is not finite at step 8, and that of A is.");
  EXPECT_EQ(found.pairs, 2);  // the finite ones
}

TEST(ComparisonJudge, TwoThatDivergeTogetherSayNothing) {
  auto comparison = pairs_of({0, 0, 0});
  comparison.runs[2].losses[7] = comparison.runs[3].losses[9] = kNan;
  const auto found = concluded(comparison);
  EXPECT_EQ(found.outcome, ComparisonOutcome::Inconclusive);
  EXPECT_THAT(found.reason, HasSubstr("A diverged with seed 11"));
}

TEST(ComparisonJudge, APairThatIsNotCompleteIsNotCounted) {
  auto comparison = pairs_of({0.01, 0.012, 7});
  comparison.runs[5].complete = false;
  const auto found =
      concluded(comparison, Ending{ComparisonOutcome::Interrupted, "Stopped in run 6 of 6."});
  EXPECT_EQ(found.outcome, ComparisonOutcome::Interrupted);
  EXPECT_EQ(found.reason, "Stopped in run 6 of 6.");
  EXPECT_EQ(found.pairs, 2);
  EXPECT_LT(found.quantities[0].difference.mean, 0.02);
  comparison.runs[3].complete = false;
  const auto one = concluded(comparison);
  EXPECT_EQ(one.outcome, ComparisonOutcome::Inconclusive);
  EXPECT_EQ(one.reason, "Expected two complete pairs of runs or more, got 1.");
  EXPECT_TRUE(one.quantities.empty());
}

TEST(ComparisonJudge, QuantitiesAndCurvesAreOfTheRightRuns) {
  const auto found = concluded(pairs_of({0.01, 0.02, 0.03}));
  ASSERT_EQ(found.quantities.size(), 7u);
  EXPECT_EQ(found.quantities[2].name, "step time, median");
  EXPECT_EQ(found.quantities[2].ratio, 2);
  EXPECT_EQ(found.quantities[3].each[0].mean, 1000);
  EXPECT_EQ(found.quantities[3].difference.mean, -500);
  EXPECT_EQ(found.quantities[3].ratio, 0.5);
  ASSERT_EQ(found.curve.size(), 100u);
  EXPECT_EQ(found.curve.front().step, 2);
  EXPECT_EQ(found.curve.back().step, kSteps);
  EXPECT_EQ(found.curve.back().each[0].mean, (2 + 2.25 + 2.5) / 3);
  EXPECT_GT(found.curve.front().each[0].mean, 3.9);
}

TEST(ComparisonJudge, AShortRunHasAPointAStep) {
  auto comparison = pairs_of({0.01, 0.02});
  comparison.steps = 3;
  EXPECT_EQ(concluded(comparison).curve.size(), 3u);
}

}  // namespace
}  // namespace equigrad::conformance
