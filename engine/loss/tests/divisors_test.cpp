// One factor for both divisors, rounded once.
#include "engine/loss/divisors.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace equigrad::loss {
namespace {

TEST(Divisors, TheFactorIsOneOverStepsTimesRanksRoundedOnce) {
  for (int64_t steps = 1; steps <= 64; ++steps) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      const double exact = 1.0 / static_cast<double>(steps * ranks);
      EXPECT_EQ(averaging_factor({}, steps, ranks), static_cast<double>(static_cast<float>(exact)));
    }
  }
  EXPECT_EQ(averaging_factor({}, 2, 2), 0.25);
  // 1/3 of 1/3, each rounded, is another number than 1/9.
  EXPECT_NE(averaging_factor({}, 3, 3),
            static_cast<double>(static_cast<float>(averaging_factor({}, 3, 1)) *
                                static_cast<float>(averaging_factor({}, 1, 3))));
}

// What is multiplied before the sum and after it gives the mean, or the sum over ranks.
TEST(Divisors, EveryKindOfAveragingSplitsTheSameDivisor) {
  using Kind = AveragingConfig::Kind;
  const auto split = [](Kind kind, double f = 1.0) {
    const AveragingConfig averaging{kind, f};
    return std::pair(factor_before_sum(averaging, 8), averaging_factor(averaging, 4, 8));
  };
  EXPECT_EQ(split(Kind::AfterSum), std::pair(1.0, 1.0 / 32));
  EXPECT_EQ(split(Kind::BeforeSum), std::pair(1.0 / 8, 1.0 / 4));
  EXPECT_EQ(split(Kind::Around, 2.0), std::pair(1.0 / 2, 1.0 / 16));
  EXPECT_EQ(split(Kind::Never), std::pair(1.0, 1.0 / 4));
}

TEST(Divisors, EachFactorIsRoundedOnceToFp32) {
  const AveragingConfig around{AveragingConfig::Kind::Around, 3.0};
  EXPECT_EQ(factor_before_sum(around, 5), static_cast<double>(1.0F / 3.0F));
  EXPECT_EQ(averaging_factor(around, 7, 5), static_cast<double>(static_cast<float>(3.0 / 35.0)));
}

TEST(Divisors, APassThatIsNotDividedWeighsAsMuchAsAWindow) {
  EXPECT_EQ(pass_weight(3, true), 1.0);
  EXPECT_EQ(pass_weight(3, false), 3.0);
  EXPECT_EQ(pass_weight(1, false), 1.0);
}

}  // namespace
}  // namespace equigrad::loss
