// A group raced for real, on a model of a few numbers: who is proven, who is timed, and beside
// whom.
#include "perf/race/race.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <equigrad_build_info.hpp>

#include "perf/race/scratch.hpp"
#include "perf/race/suites.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Programs programs() {
  Programs found;
  const char* path = std::getenv("EQUIGRAD_PERF_WORKER");
  found.worker =
      path != nullptr ? path : std::string(build_info::binary_directory()) + "/perf_worker";
  return found;
}

Contestant libtorch(const std::string& name) {
  return {.name = name,
          .command = {programs().worker},
          .settings = {{"work", "libtorch"}},
          .is_ours = true,
          .is_alone = true};
}

Contestant engine(const std::string& name, int stage) {
  return engine_contestant(name, programs(), engine_config(stage, 4, 1, json::object()));
}

RaceGroup group(std::vector<Contestant> contestants) {
  return {.name = "few",
          .model = {{"kind", "dots"}, {"count", 4}, {"width", 16}},
          .model_text = "4 parameters of 16 elements",
          .rounds = 3,
          .steps = 2,
          .base = "alone",
          .contestants = std::move(contestants)};
}

reports::RaceGroupResult raced(const RaceGroup& group) {
  const Scratch scratch;
  return run_group(group, {.scratch = scratch.path()});
}

TEST(RunGroup, EveryContestantIsProvenCountedAndTimedBesideTheBase) {
  const auto found = raced(group({libtorch("alone"), engine("two", 2)}));
  EXPECT_EQ(found.parameters, 64);
  EXPECT_EQ(found.tokens_per_step, 8) << "2 ranks with 4 each";
  ASSERT_THAT(found.rows, SizeIs(2));
  for (const auto& row : found.rows) {
    EXPECT_EQ(row.trouble, "");
    EXPECT_TRUE(row.is_proven) << row.contestant;
    EXPECT_EQ(row.differing_elements, 0) << row.contestant;
    EXPECT_THAT(row.round_s, SizeIs(3)) << "the first round is not kept";
    EXPECT_THAT(row.round_cpu_s, SizeIs(3));
    EXPECT_LE(row.step_s.low, row.step_s.median);
    // One step of the slowest rank's; a round's mean may be less, where ranks are slow in turn.
    EXPECT_LE(row.best_step_s, static_cast<double>(found.steps_per_round) *
                                   *std::min_element(row.round_s.begin(), row.round_s.end()));
    EXPECT_GT(row.best_step_s, 0);
    EXPECT_EQ(row.tokens_per_s, 8 / row.step_s.median);
  }
  const auto& base = found.rows[0];
  EXPECT_EQ(base.to_base.low, 1);
  EXPECT_EQ(base.to_base.high, 1);
  EXPECT_THAT(base.collectives, IsEmpty());
  const auto& two = found.rows[1];
  EXPECT_FALSE(two.collectives.empty());
  EXPECT_GT(two.wire_bytes.value_or(0), 0);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < 3; ++i) ratios.push_back(two.round_s[i] / base.round_s[i]);
  std::sort(ratios.begin(), ratios.end());
  EXPECT_EQ(two.to_base.median, ratios[1]) << "of two times of one round";
}

// Four micro-batches where the reference has one.
TEST(RunGroup, WhoseGradientsAreNotTheReferencesIsNotTimed) {
  auto other = engine("other", 0);
  other.settings["config"] = engine_config(0, 4, 4, json::object()).dump();
  other.settings["accumulation"] = 4;
  auto both = group({libtorch("alone"), other});
  both.lives = 2;  // nor in a later life
  const auto found = raced(both);
  EXPECT_THAT(found.rows[0].round_s, SizeIs(6));
  EXPECT_THAT(found.rows[1].trouble, HasSubstr("first gradients are not the reference's"));
  EXPECT_FALSE(found.rows[1].is_proven);
  EXPECT_THAT(found.rows[1].round_s, IsEmpty());
}

TEST(RunGroup, WithoutItsBaseAContestantHasTimesAndNoRatio) {
  auto gone = libtorch("alone");
  gone.command = {"/bin/false"};
  const auto found = raced(group({gone, engine("two", 2)}));
  EXPECT_THAT(found.rows[0].trouble, ContainsRegex("alone, rank [01]: "));  // whoever is seen first
  EXPECT_THAT(found.rows[0].round_s, IsEmpty());
  EXPECT_THAT(found.rows[1].round_s, SizeIs(3));
  EXPECT_GT(found.rows[1].step_s.median, 0);
  EXPECT_EQ(found.rows[1].to_base.median, 0);
  EXPECT_EQ(found.rows[1].cpu_to_base.median, 0);
}

// In the second part the base runs again; its row keeps the first part's.
TEST(RunGroup, InPartsEachRatioIsOfItsOwnPart) {
  auto three = group({libtorch("alone"), engine("zero", 0), engine("three", 3)});
  three.at_once = 2;
  const auto found = raced(three);
  for (const auto& row : found.rows) {
    EXPECT_THAT(row.round_s, SizeIs(3)) << row.contestant << row.trouble;
    EXPECT_GT(row.to_base.median, 0);
  }
  const auto ratio_to_first_part = [&](const reports::RaceRow& row) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < 3; ++i) ratios.push_back(row.round_s[i] / found.rows[0].round_s[i]);
    std::sort(ratios.begin(), ratios.end());
    return ratios[1];
  };
  EXPECT_EQ(found.rows[1].to_base.median, ratio_to_first_part(found.rows[1]));
  EXPECT_NE(found.rows[2].to_base.median, ratio_to_first_part(found.rows[2]));
}

// Processes are new in each life; its one value is the median of its own rounds.
TEST(RunGroup, OfSeveralLivesEachIsOneValue) {
  auto few = group({libtorch("alone"), engine("two", 2)});
  few.lives = 2;
  const auto found = raced(few);
  EXPECT_EQ(found.lives, 2);
  ASSERT_THAT(found.rows[0].round_s, SizeIs(6));
  ASSERT_THAT(found.rows[1].round_s, SizeIs(6)) << found.rows[1].trouble;
  std::vector<double> lives;
  for (const std::size_t first : {std::size_t{0}, std::size_t{3}}) {
    std::vector<double> ratios;
    for (std::size_t i = first; i < first + 3; ++i)
      ratios.push_back(found.rows[1].round_s[i] / found.rows[0].round_s[i]);
    std::sort(ratios.begin(), ratios.end());
    lives.push_back(ratios[1]);
  }
  EXPECT_EQ(found.rows[1].to_base.low, std::min(lives[0], lives[1]));
  EXPECT_EQ(found.rows[1].to_base.high, std::max(lives[0], lives[1]));
  EXPECT_EQ(found.rows[1].to_base.median, (lives[0] + lives[1]) / 2);
}

}  // namespace
}  // namespace equigrad::perf
