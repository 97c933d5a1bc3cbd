// The exact sum of squares and the clip factor.
#include "reference/norm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace equigrad::reference {
namespace {

double sum_of(const std::vector<double>& terms) {
  ExactSum sum;
  for (const double term : terms) sum.add(term);
  return sum.value();
}

TEST(ExactSum, IsTheRoundedIntegerSum) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    __int128 exact = 0;
    std::vector<double> terms;
    for (int i = 0; i < 40; ++i) {
      const int64_t mantissa = static_cast<int64_t>(random() >> 11) - (int64_t{1} << 52);
      const int shift = static_cast<int>(random() % 65);
      exact += static_cast<__int128>(mantissa) * (static_cast<__int128>(1) << shift);
      terms.push_back(std::ldexp(static_cast<double>(mantissa), shift));
    }
    ASSERT_EQ(sum_of(terms), static_cast<double>(exact)) << "trial " << trial;
  }
}

TEST(ExactSum, DoesNotDependOnTheOrder) {
  std::mt19937_64 random(2);
  std::vector<double> terms;
  for (int i = 0; i < 500; ++i) {
    const double sign = random() % 2 == 0 ? 1 : -1;
    const double size = static_cast<double>(random() >> 11);
    terms.push_back(sign * std::ldexp(size, static_cast<int>(random() % 600) - 300));
  }
  const double first = sum_of(terms);
  for (int trial = 0; trial < 50; ++trial) {
    std::shuffle(terms.begin(), terms.end(), random);
    ASSERT_EQ(sum_of(terms), first);
  }
}

TEST(ExactSum, RoundsTiesToEvenUnlessSomethingLiesBelow) {
  const double big = std::ldexp(1, 53);
  const double tiny = std::ldexp(1, -60);
  EXPECT_EQ(sum_of({big, 1}), big);
  EXPECT_EQ(sum_of({big, 1, tiny}), big + 2);
  EXPECT_EQ(sum_of({big, 2, 1}), big + 4);
  EXPECT_EQ(sum_of({big, 2, 1, -tiny}), big + 2);
  EXPECT_EQ(sum_of({std::ldexp(1, 1000), 1, -std::ldexp(1, 1000)}), 1);
  EXPECT_EQ(sum_of({}), 0);
}

TEST(ExactSum, KeepsBothHalvesOfASquare) {
  ExactSum sum;
  sum.add_square(1 + std::ldexp(1, -30));  // 1 + 2^-29 + 2^-60
  sum.add(-1);
  sum.add(-std::ldexp(1, -29));
  EXPECT_EQ(sum.value(), std::ldexp(1, -60));
}

TEST(ExactSum, PassesOnWhatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({1, infinity, 2}), infinity);
  EXPECT_TRUE(std::isnan(sum_of({infinity, 1, -infinity})));
  ExactSum squares;
  squares.add_square(-infinity);
  EXPECT_EQ(squares.value(), infinity);
}

TEST(ClipFactor, IsOneUnlessTheNormIsAboveTheLimit) {
  EXPECT_EQ(clip_factor(8, 0), 1);
  EXPECT_EQ(clip_factor(8, 8), 1);
  EXPECT_EQ(clip_factor(8, 9), 1);
  EXPECT_EQ(clip_factor(8, 2), 2 / (8 + 1e-6));
}

}  // namespace
}  // namespace equigrad::reference
