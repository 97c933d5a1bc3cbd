// Student's t and the two one-sided tests, digit for digit as published.
#include "conformance/verdict/statistics.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

// As many digits as a book prints.
std::string printed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

TEST(Statistics, QuantilesAreThoseOfTheTable) {
  struct Row {
    double freedom;
    const char *p95, *p975, *p995;
  };
  for (const auto& [freedom, p95, p975, p995] :
       std::vector<Row>{{1, "6.314", "12.706", "63.657"},
                        {2, "2.920", "4.303", "9.925"},
                        {3, "2.353", "3.182", "5.841"},
                        {4, "2.132", "2.776", "4.604"},
                        {9, "1.833", "2.262", "3.250"},
                        {30, "1.697", "2.042", "2.750"},
                        {60, "1.671", "2.000", "2.660"},
                        {120, "1.658", "1.980", "2.617"}}) {
    EXPECT_EQ(printed(student_t_quantile(0.95, freedom), 3), p95) << freedom;
    EXPECT_EQ(printed(student_t_quantile(0.975, freedom), 3), p975) << freedom;
    EXPECT_EQ(printed(student_t_quantile(0.995, freedom), 3), p995) << freedom;
  }
  EXPECT_EQ(printed(student_t_quantile(0.975, 1e7), 5), "1.95996");  // the normal distribution's
  EXPECT_EQ(student_t_quantile(0.5, 3), 0);
}

// With one and two degrees of freedom the distribution has a closed form.
TEST(Statistics, ProbabilitiesAreThoseOfTheClosedForms) {
  for (const double t : {-40.0, -3.0, -1.0, -0.25, 0.0, 0.1, 1.0, 2.5, 1000.0}) {
    EXPECT_EQ(printed(student_t_below(t, 1), 13), printed(0.5 + std::atan(t) / M_PI, 13)) << t;
    EXPECT_EQ(printed(student_t_below(t, 2), 13), printed(0.5 + t / (2 * std::sqrt(2 + t * t)), 13))
        << t;
  }
}

TEST(Statistics, AQuantileHasItsProbability) {
  for (const double freedom : {1.0, 4.0, 9.0, 250.0})
    for (const double p : {0.001, 0.025, 0.05, 0.4}) {
      const double t = student_t_quantile(p, freedom);
      EXPECT_EQ(printed(student_t_below(t, freedom), 13), printed(p, 13));
      EXPECT_EQ(printed(student_t_below(-t, freedom), 13), printed(1 - p, 13));
    }
}

// Hours of sleep gained (Cushny and Peebles 1905), the pairs of Student's own paper.
TEST(Statistics, StudentsSleepersSleepLonger) {
  const auto sleep = sample_of({1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4});
  EXPECT_EQ(printed(sleep.mean, 2), "1.58");
  EXPECT_EQ(printed(sleep.deviation, 6), "1.229995");
  const auto interval = mean_interval(sleep, 0.95);
  EXPECT_EQ(printed(interval.low, 7), "0.7001142");
  EXPECT_EQ(printed(interval.high, 7), "2.4598858");
  EXPECT_EQ(printed(no_difference(sleep), 6), "0.002833");
}

// Lakens, Equivalence Tests (Soc. Psychol. Personal. Sci. 8, 2017) and its package: a mean of 0.54
// against 0.5, s = 1.2, n = 100, margin 0.3 s; and pairs with a difference of 0.08, margin 0.4 s.
TEST(Statistics, TheTextbooksEquivalenceTests) {
  const Sample one{0.04, 1.2, 100};
  EXPECT_EQ(printed(no_difference(one), 3), "0.740");
  const auto small = equivalence(one, 0.36);
  EXPECT_EQ(printed(small.p_high, 5), "0.00447");
  EXPECT_EQ(small.p(), small.p_high);
  const auto inside = mean_interval(one, 0.90);
  EXPECT_EQ(printed(inside.low, 3) + " " + printed(inside.high, 3), "-0.159 0.239");
  const double s = std::sqrt(1.17 * 1.17 + 1.29 * 1.29 - 2 * 0.75 * 1.17 * 1.29);
  const auto paired = equivalence({0.08, s, 65}, 0.4 * s);
  EXPECT_EQ(printed(paired.p(), 3), "0.008");
}

TEST(Statistics, ATestAtFivePercentIsTheNinetyPercentInterval) {
  for (const double mean : {-0.2, -0.031, 0.0, 0.02, 0.0294, 0.0295, 0.05}) {
    const Sample sample{mean, 0.02, 5};
    const auto interval = mean_interval(sample, 0.90);
    const bool inside = interval.low > -0.05 && interval.high < 0.05;
    EXPECT_EQ(equivalence(sample, 0.05).p() < 0.05, inside) << mean;
  }
  EXPECT_LT(equivalence({0.0, 0.02, 5}, 0.05).p(), 0.05);
  EXPECT_GT(equivalence({0.05, 0.02, 5}, 0.05).p_high, 0.05);
  EXPECT_GT(equivalence({-0.05, 0.02, 5}, 0.05).p_low, 0.05);
}

TEST(Statistics, ValuesWithoutSpreadAreCertain) {
  const auto same = sample_of({0.1, 0.1, 0.1});
  EXPECT_EQ(same.mean, 0.1);
  EXPECT_EQ(same.deviation, 0);
  EXPECT_EQ(mean_interval(same, 0.95).low, 0.1);
  EXPECT_EQ(mean_interval(same, 0.95).high, 0.1);
  EXPECT_EQ(no_difference(same), 0);
  EXPECT_EQ(no_difference(sample_of({0, 0})), 1);
  EXPECT_EQ(equivalence(same, 0.2).p(), 0);
  EXPECT_EQ(equivalence(same, 0.1).p(), 1);
}

TEST(Statistics, MediansAreTheMiddle) {
  EXPECT_EQ(median_of({3}), 3);
  EXPECT_EQ(median_of({9, 1, 2}), 2);
  EXPECT_EQ(median_of({9, 1, 2, 4}), 3);
}

TEST(Statistics, WhatIsNoSampleIsRefused) {
  EXPECT_THROW(sample_of({}), Error);
  EXPECT_THROW(sample_of({1}), Error);
  EXPECT_THROW(sample_of({1, std::numeric_limits<double>::quiet_NaN()}), Error);
  EXPECT_THROW(median_of({}), Error);
  EXPECT_THROW(student_t_quantile(1, 4), Error);
  EXPECT_THROW(student_t_below(1, 0), Error);
  EXPECT_THROW(mean_interval({0, 1, 5}, 1), Error);
  EXPECT_THROW(equivalence({0, 1, 5}, 0), Error);
}

}  // namespace
}  // namespace equigrad::conformance
