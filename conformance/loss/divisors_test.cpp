// One factor for both divisors, rounded once.
#include "engine/loss/divisors.hpp"

#include <gtest/gtest.h>

namespace equigrad::loss {
namespace {

TEST(Divisors, TheFactorIsOneOverStepsTimesRanksRoundedOnce) {
  for (int64_t steps = 1; steps <= 64; ++steps) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      const double exact = 1.0 / static_cast<double>(steps * ranks);
      EXPECT_EQ(averaging_factor(steps, ranks), static_cast<double>(static_cast<float>(exact)));
    }
  }
  EXPECT_EQ(averaging_factor(2, 2), 0.25);
  // 1/3 of 1/3, each rounded, is another number than 1/9.
  EXPECT_NE(averaging_factor(3, 3),
            static_cast<double>(static_cast<float>(averaging_factor(3, 1)) *
                                static_cast<float>(averaging_factor(1, 3))));
}

TEST(Divisors, APassThatIsNotDividedWeighsAsMuchAsAWindow) {
  EXPECT_EQ(pass_weight(3, true), 1.0);
  EXPECT_EQ(pass_weight(3, false), 3.0);
  EXPECT_EQ(pass_weight(1, false), 1.0);
}

}  // namespace
}  // namespace equigrad::loss
