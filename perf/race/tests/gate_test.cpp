#include "perf/race/gate.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <equigrad_build_info.hpp>
#include <fstream>
#include <set>

#include "perf/race/scratch.hpp"
#include "perf/race/suites.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;
using testing::IsEmpty;

std::string worker() {
  const char* path = std::getenv("EQUIGRAD_PERF_WORKER");
  return path != nullptr ? path : std::string(build_info::binary_directory()) + "/perf_worker";
}

class Gate : public testing::Test {
 protected:
  const std::string& scratch() const { return folder_.path(); }

 private:
  Scratch folder_;
};

json baseline() {
  std::ifstream file(std::string(build_info::source_directory()) + "/perf/baselines/counts.json");
  return json::parse(file);
}

TEST_F(Gate, CountsAreThoseOfTheBaseline) {
  ASSERT_EQ(baseline().at("torch"), build_info::torch_version());
  EXPECT_THAT(differences(baseline().at("counts"), count_steps(worker(), scratch())), IsEmpty());
}

// Of two ranks only.
std::vector<std::string> found_with(const std::string& scratch, const json& faults) {
  const json all = baseline().at("counts");
  json expected = json::object();
  for (const auto& [name, counts] : all.items())
    if (name.ends_with("ranks 2")) expected[name] = counts;
  return differences(expected, count_steps(worker(), scratch, faults, {2}));
}

TEST_F(Gate, SeesOneMoreCollective) {
  EXPECT_THAT(found_with(scratch(), {{"one_more", true}}),
              testing::Contains(testing::HasSubstr("collectives")));
}

TEST_F(Gate, SeesOneMoreCopy) {
  EXPECT_THAT(found_with(scratch(), {{"copies", true}}),
              testing::Contains(testing::HasSubstr("allocations")));
}

TEST_F(Gate, SeesThatNothingOverlaps) {
  EXPECT_THAT(found_with(scratch(), {{"waits", true}}),
              testing::Contains(testing::HasSubstr("overlapped")));
}

TEST_F(Gate, SeesNothingInASleep) {  // that is for times
  EXPECT_THAT(found_with(scratch(), {{"sleep_us", 100}}), IsEmpty());
}

TEST_F(Gate, NothingGrowsAtAnyStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto report = find_leaks(worker(), scratch(), stage);
    EXPECT_FALSE(report.leaks()) << "stage " << stage << ": " << report.grown_bytes << " bytes in "
                                 << report.grown_count << " blocks, ledger " << report.ledger_bytes;
  }
}

TEST_F(Gate, SeesALeakOfOneKibibyteAStep) {
  const auto report = find_leaks(worker(), scratch(), 2, {{"leak_bytes", 1024}});
  EXPECT_TRUE(report.leaks());
  EXPECT_GE(report.grown_bytes, report.steps * 1024);
}

// One of the two sleeps in every step, far longer than a step takes.
TimesPlan plan(int64_t older_sleep_us, int64_t newer_sleep_us) {
  TimesPlan plan;
  Programs programs;
  programs.worker = worker();
  plan.model = gpt(2, 24, 2, 16, 64);
  const auto config = engine_config(2, plan.batch, 1, json::object());
  plan.older = engine_contestant("older", programs, config);
  plan.newer = engine_contestant("newer", programs, config);
  plan.older.settings["faults"] = {{"step_sleep_us", older_sleep_us}};
  plan.newer.settings["faults"] = {{"step_sleep_us", newer_sleep_us}};
  plan.pairs = 30;  // a few may meet other work
  plan.steps = 1;
  plan.lives = 1;
  return plan;
}

TEST_F(Gate, TimesOfASlowerOneAreRegressedAndOfAFasterOneAreNot) {
  const auto slower = compare_times(plan(0, 100'000), scratch());
  EXPECT_EQ(slower.verdict, Verdict::Regressed);
  EXPECT_EQ(slower.ratios.size(), 30u);
  EXPECT_GT(slower.ratio.low, 1.05);
  const auto faster = compare_times(plan(100'000, 0), scratch());
  EXPECT_EQ(faster.verdict, Verdict::Equivalent) << "not slower by more than the margin";
  EXPECT_LT(faster.ratio.high, 1);
}

// However clear they look.
TEST_F(Gate, TimesOfFewerPairsThanTheConfidenceNeedsAreInconclusive) {
  auto few = plan(0, 100'000);
  few.pairs = values_for(looks_of(few).confidence) - 1;
  const auto found = compare_times(few, scratch());
  EXPECT_EQ(found.ratios.size(), static_cast<std::size_t>(few.pairs));
  EXPECT_EQ(found.verdict, Verdict::Inconclusive);
}

// Pairs of one life are fast or slow together, so a life is one value.
TEST_F(Gate, OfSeveralLivesAVerdictComesAfterAsManyAsItNeeds) {
  auto many = plan(0, 50'000);
  many.pairs = 2;
  many.lives = 40;
  many.confidence = 0.75;
  const auto looks = looks_of(many);
  const auto found = compare_times(many, scratch());
  EXPECT_EQ(found.verdict, Verdict::Regressed);
  EXPECT_THAT(looks.lives, testing::Contains(found.lives));
  EXPECT_EQ(found.ratios.size(), 2u * static_cast<std::size_t>(found.lives));
  const auto high = [&](const std::vector<double>& values) {
    return median_interval(by_life(values, found.lives), looks.confidence).high;
  };
  EXPECT_EQ(found.ratio.high, high(found.ratios));
  EXPECT_EQ(found.cpu_ratio.high, high(found.cpu_ratios));
  many.lives = 3;
  many.confidence = 0.99;
  EXPECT_EQ(compare_times(many, scratch()).verdict, Verdict::Inconclusive) << "with 6 pairs";
}

LifeTimes life_of(double ratio, double cpu_ratio) {
  return {{ratio * 0.5, ratio, ratio * 2}, {cpu_ratio, cpu_ratio, cpu_ratio}};
}

// Whoever measured them.
TEST(JudgeLives, AsksForNoMoreLivesThanAVerdictNeeds) {
  TimesPlan plan;
  plan.pairs = 3;
  std::vector<int> asked;
  const auto of = [&](double ratio, double cpu_ratio) {
    asked.clear();
    return judge_lives(plan, [&](int life) {
      asked.push_back(life);
      return life_of(ratio, cpu_ratio);
    });
  };
  const auto first = static_cast<std::size_t>(looks_of(plan).lives.front());
  EXPECT_EQ(of(1.001, 1).verdict, Verdict::Equivalent);
  EXPECT_EQ(asked.size(), first);
  EXPECT_EQ(asked.front(), 1);
  EXPECT_EQ(of(1.03, 1).verdict, Verdict::Regressed);
  EXPECT_EQ(of(1, 1.03).verdict, Verdict::Regressed) << "in CPU time alone";
  const auto open = judge_lives(plan, [](int life) { return life_of(life % 2 ? 1 : 1.1, 1); });
  EXPECT_EQ(open.verdict, Verdict::Inconclusive);
  EXPECT_EQ(open.lives, plan.lives);
}

TEST(JudgeLives, GivesItsLivesBack) {
  TimesPlan plan;
  plan.pairs = 3;
  const auto result =
      judge_lives(plan, [](int life) { return life_of(1 + 0.001 * life, 2 + 0.001 * life); });
  const auto lives = lives_of(result);
  ASSERT_EQ(lives.size(), static_cast<std::size_t>(result.lives));
  for (std::size_t i = 0; i < lives.size(); ++i) {
    const auto number = static_cast<double>(i + 1);
    EXPECT_EQ(lives[i].ratios, life_of(1 + 0.001 * number, 1).ratios);
    EXPECT_EQ(lives[i].cpu_ratios, life_of(1, 2 + 0.001 * number).cpu_ratios);
  }
}

TEST(JudgeLives, DrawsOtherLivesForEveryRunAndAllOfThem) {
  TimesPlan plan;
  plan.pairs = 3;
  std::vector<LifeTimes> lives;
  for (int i = 0; i < 9; ++i) lives.push_back(life_of(1 + 0.001 * i, 1));
  const auto runs = judge_drawn(plan, lives, 20), again = judge_drawn(plan, lives, 20);
  ASSERT_EQ(runs.size(), 20u);
  std::set<std::vector<double>> kinds;
  std::set<double> drawn;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    kinds.insert(runs[i].ratios);
    drawn.insert(runs[i].ratios.begin(), runs[i].ratios.end());
    EXPECT_EQ(runs[i].ratios, again[i].ratios);
  }
  EXPECT_EQ(kinds.size(), runs.size());
  EXPECT_EQ(drawn.size(), 9u * 3u);
}

// All questions together are wrong no more often than was said.
TEST(Looks, ShareWhatTheConfidenceLeaves) {
  TimesPlan plan;
  const auto looks = looks_of(plan);
  EXPECT_GE(looks.lives.front(), values_for(looks.confidence));
  EXPECT_TRUE(std::is_sorted(looks.lives.begin(), looks.lives.end()));
  EXPECT_EQ(looks.lives.back(), plan.lives);
  EXPECT_LE(2 * static_cast<double>(looks.lives.size()) * (1 - looks.confidence),
            1 - plan.confidence + 1e-12);
  plan.lives = 1;
  EXPECT_THAT(looks_of(plan).lives, testing::ElementsAre(1));
}

TEST(Differences, NamesEachPlace) {
  const json expected = {{"a", {{"x", 1}, {"y", 2}}}, {"b", 3}};
  const json got = {{"a", {{"x", 1}, {"y", 5}, {"z", 1}}}};
  EXPECT_THAT(differences(expected, got),
              testing::ElementsAre("a: y: expected 2, got 5", "a: z: expected nothing, got 1",
                                   "b: expected 3, got null"));
  EXPECT_THAT(differences(expected, expected), IsEmpty());
}

}  // namespace
}  // namespace equigrad::perf
