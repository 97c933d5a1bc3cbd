#include "perf/race/gate.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <equigrad_build_info.hpp>
#include <fstream>

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

// However clear they look; of two lives it may end after the second, and has their pairs.
TEST_F(Gate, TimesOfFewerPairsThanTheConfidenceNeedsAreInconclusive) {
  auto few = plan(0, 100'000);
  few.pairs = 11;  // 12 are needed
  const auto found = compare_times(few, scratch());
  EXPECT_EQ(found.ratios.size(), 11u);
  EXPECT_EQ(found.verdict, Verdict::Inconclusive);
  few.pairs = 6;
  few.lives = 4;
  const auto more = compare_times(few, scratch());
  EXPECT_EQ(more.ratios.size(), 24u) << "12 after two lives: too few for the second question";
  EXPECT_EQ(more.verdict, Verdict::Regressed);
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
