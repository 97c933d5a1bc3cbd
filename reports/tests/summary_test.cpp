#include "reports/summary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reports/tests/example_run.hpp"
#include "reports/tests/large_run.hpp"

namespace equigrad::conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST(Summary, NumbersAreOrderedAsNumbersAndWordsByAppearance) {
  reports::Run run;
  for (const char* value : {"loss", "10", "engine", "2", "loss"}) {
    run.cases.emplace_back().dimensions = {{"ranks", value}};
  }
  EXPECT_EQ(reports::values(run, "ranks"), (std::vector<std::string>{"2", "10", "loss", "engine"}));
  EXPECT_EQ(reports::values(run, "stage"), (std::vector<std::string>{"-"}));
}

TEST(Summary, EveryCaseIsInExactlyOneGroup) {
  const reports::Run run = large_run(500, 7);
  reports::Counts sum;
  size_t cases = 0;
  for (const reports::Group& group : reports::group_by(run, {"stage", "precision", "ranks"})) {
    cases += group.cases.size();
    sum.equal += group.counts.equal;
    sum.within += group.counts.within;
    sum.failed += group.counts.failed;
    sum.compared += group.counts.compared;
  }
  const reports::Counts want = reports::counts(run);
  EXPECT_EQ(cases, run.cases.size());
  EXPECT_EQ(sum.equal, want.equal);
  EXPECT_EQ(sum.within, want.within);
  EXPECT_EQ(sum.failed, want.failed);
  EXPECT_EQ(sum.compared, want.compared);
}

TEST(Summary, GroupsFollowTheOrderOfTheirValues) {
  std::vector<std::vector<std::string>> keys;
  for (const reports::Group& group : reports::group_by(example_run(), {"stage", "precision"})) {
    keys.push_back(group.key);
  }
  EXPECT_EQ(keys, (std::vector<std::vector<std::string>>{
                      {"0", "fp32"}, {"2", "bf16"}, {"3", "fp32"}, {"3", "bf16"}}));
}

TEST(Summary, TheWorstMarginIsNanThenInfinityThenTheLargest) {
  EXPECT_TRUE(reports::worse_margin(kNan, kInfinity));
  EXPECT_TRUE(reports::worse_margin(kInfinity, 1e300));
  EXPECT_TRUE(reports::worse_margin(0.5, 0.25));
  EXPECT_FALSE(reports::worse_margin(kNan, kNan));
  EXPECT_FALSE(reports::worse_margin(kInfinity, kNan));
  EXPECT_FALSE(reports::worse_margin(0, 0));
}

TEST(Summary, ALaneThatNeverReachedItsBoundKeepsItsWorstMargin) {
  reports::Run run = large_run(64, 0);
  run.cases[4].lanes[2].margin = kNan;
  const reports::Group all = reports::whole(run);
  ASSERT_NE(all.lane("bounded"), nullptr);
  EXPECT_TRUE(std::isnan(all.lane("bounded")->margin));
  EXPECT_EQ(all.lane("other"), nullptr);
}

TEST(Summary, SkippedLanesAreNotCountedAsCases) {
  reports::Run run = large_run(8, 0);
  run.cases[0].lanes[1].verdict = reports::Verdict::Skipped;
  EXPECT_EQ(reports::whole(run).lane("cross")->cases, 7);
}

TEST(Summary, OneFailureOutweighsAllThatHeld) {
  reports::Run run = large_run(8, 0);
  EXPECT_EQ(reports::whole(run).verdict(), reports::Verdict::Within);
  run.cases[0].verdict = reports::Verdict::TimedOut;
  EXPECT_EQ(reports::whole(run).verdict(), reports::Verdict::TimedOut);
  run.cases[1].verdict = reports::Verdict::Crashed;
  EXPECT_EQ(reports::whole(run).verdict(), reports::Verdict::Crashed);
  run.cases[2].verdict = reports::Verdict::Failed;
  EXPECT_EQ(reports::whole(run).verdict(), reports::Verdict::Failed);
}

TEST(Summary, TheWorstFailureComesFirstAndCrashesLast) {
  reports::Run run = large_run(8, 0);
  run.cases[0].verdict = reports::Verdict::Crashed;
  run.cases[0].lanes[0].margin = kNan;
  for (const size_t i : {2u, 3u, 4u}) fail(run.cases[i]);
  run.cases[2].lanes[0].margin = 3;
  run.cases[3].lanes[0].margin = kNan;
  const std::vector<const reports::Case*> worst = reports::worst_first(reports::wrong_cases(run));
  EXPECT_EQ(worst, (std::vector<const reports::Case*>{&run.cases[3], &run.cases[4], &run.cases[2],
                                                      &run.cases[0]}));
}

TEST(Summary, ReasonsAreCountedMostFrequentFirst) {
  const std::vector<reports::Reason> why = reports::reasons(example_run());
  ASSERT_EQ(why.size(), 3u);
  EXPECT_EQ(why[0].cases, 12);
  EXPECT_EQ(why[0].text, "stage 3 on CUDA: no device");
  EXPECT_EQ(why[0].verdict, reports::Verdict::NotRun);
}

}  // namespace
}  // namespace equigrad::conformance
