#include "perf/race/medians.hpp"

#include <gmock/gmock.h>

#include <random>
#include <stdexcept>

namespace equigrad::perf {
namespace {

TEST(MedianInterval, IsTheOrderStatisticsOfTheTable) {
  // Of 11 values the 2nd and the 10th hold the median with 98.8 %, the 3rd and 9th with 93.5 %.
  std::vector<double> values;
  for (int i = 11; i >= 1; --i) values.push_back(i);
  const auto wide = median_interval(values, 0.95);
  EXPECT_EQ(wide.median, 6);
  EXPECT_EQ(wide.low, 2);
  EXPECT_EQ(wide.high, 10);
  EXPECT_EQ(median_interval(values, 0.93).low, 3);
}

TEST(MedianInterval, HoldsTheMedianAsOftenAsItSays) {
  std::mt19937_64 random(1);
  std::exponential_distribution<double> skewed(1);  // its median is ln 2
  int held = 0;
  constexpr int kRuns = 4000;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<double> values;
    for (int i = 0; i < 15; ++i) values.push_back(skewed(random));
    const auto interval = median_interval(values, 0.9);
    held += interval.low <= 0.6931471805599453 && 0.6931471805599453 <= interval.high ? 1 : 0;
  }
  // 15 values: the 4th and 12th, 96.5 %. Chernoff: below 95 % has a probability under 1e-4.
  EXPECT_GT(held, kRuns * 95 / 100);
}

TEST(MedianInterval, NeedsValuesAndAConfidence) {
  EXPECT_THROW(median_interval({}, 0.9), std::runtime_error);
  EXPECT_THROW(values_for(1), std::runtime_error);
  EXPECT_EQ(values_for(0.95), 6);    // 2 / 2^6 = 0.031
  EXPECT_EQ(values_for(0.999), 11);  // 2 / 2^11 = 0.00098
}

TEST(Judge, HasThreeVerdicts) {
  EXPECT_EQ(judge({1.2, 1.11, 1.3}, 0.1), Verdict::Regressed);
  EXPECT_EQ(judge({1.02, 0.98, 1.09}, 0.1), Verdict::Equivalent);
  EXPECT_EQ(judge({0.5, 0.4, 0.6}, 0.1), Verdict::Equivalent);  // faster is no finding
  EXPECT_EQ(judge({1.08, 1.01, 1.12}, 0.1), Verdict::Inconclusive);
}

TEST(WholeLives, OfAnInterruptedRaceAreThoseThatEndedOrTheFirstAsFarAsItWent) {
  const auto is = [](std::size_t had, std::int64_t lives, std::int64_t rounds) {
    const auto found = whole_lives(had, 4);
    EXPECT_EQ(found.lives, lives) << had;
    EXPECT_EQ(found.rounds, rounds) << had;
  };
  is(1, 1, 1);
  is(3, 1, 3);
  is(4, 1, 4);
  is(7, 1, 4);
  is(8, 2, 4);
  is(11, 2, 4);
}

TEST(ByLife, ALifeIsTheMedianOfItsOwnValues) {
  using testing::ElementsAre;
  EXPECT_THAT(by_life({3, 1, 2, 9, 7, 8}, 2), ElementsAre(2, 8));
  EXPECT_THAT(by_life({1, 2, 3, 4}, 1), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(by_life({1, 2, 5, 8}, 2), ElementsAre(1.5, 6.5));
}

}  // namespace
}  // namespace equigrad::perf
