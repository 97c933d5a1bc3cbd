// Theta falls from 1 to its limit by its formula, and bad values are refused.
#include "engine/schedule/progressive_layer_drop.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/error.hpp"

namespace equigrad::schedule {
namespace {

using testing::HasSubstr;

double theta_after(double theta, double gamma, std::int64_t step) {
  ProgressiveLayerDrop drop({true, theta, gamma});
  drop.update(step);
  return drop.theta();
}

std::string error_of(double theta, double gamma, std::int64_t step) {
  try {
    theta_after(theta, gamma, step);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Theta, BeginsAtOneAndTheFirstBoundaryKeepsIt) {
  ProgressiveLayerDrop drop({true, 0.5, 0.001});
  EXPECT_EQ(drop.state(), (LayerDropState{true, 1.0}));
  drop.update(0);
  EXPECT_EQ(drop.state(), (LayerDropState{true, 1.0}));
  drop.update(1);
  EXPECT_LT(drop.state().pld_theta, 1.0);
  EXPECT_EQ(drop.state().pld_theta, drop.theta());
}

// The exponential as a product of one step's factor, whose 1000 roundings are below 2^-54. Of the
// tested code gamma t is exact, the exponential has an ulp (2^-53), the product and the sum of the
// interpolation half an ulp each (2^-54).
TEST(Theta, IsTheFormulaAtEveryStep) {
  constexpr double kThetaBar = 0.375, kGamma = 0x1p-14;
  const long double one_step = std::exp(-static_cast<long double>(kGamma));
  long double kept = 1.0L;
  for (std::int64_t step = 0; step <= 1000; ++step, kept *= one_step) {
    const long double exact = 0.375L + 0.625L * kept;
    EXPECT_LE(std::fabs(theta_after(kThetaBar, kGamma, step) - exact), 0x1p-51L) << step;
  }
}

TEST(Theta, FallsToItsLimitAndNeverBelow) {
  ProgressiveLayerDrop drop({true, 0.3, 0.01});
  double last = drop.theta();
  for (std::int64_t step = 0; step < 20'000; step += 7) {
    drop.update(step);
    EXPECT_LE(drop.theta(), last);
    EXPECT_GE(drop.theta(), 0.3);
    last = drop.theta();
  }
  EXPECT_EQ(last, 0.3);
}

TEST(Theta, OfDeepSpeedAtThousandSteps) {
  EXPECT_EQ(static_cast<float>(theta_after(0.5, 0.001, 1000)), 0.683939695F);
  EXPECT_EQ(static_cast<float>(theta_after(0.5, 0.001, 5000)), 0.503368974F);
}

TEST(Refused, AreValuesOutsideTheirRange) {
  EXPECT_EQ(error_of(1.5, 0.001, 0),
            "[progressive_layer_drop.theta] expected a probability from 0 to 1, got 1.500000. "
            "Write 0.5.");
  EXPECT_THAT(error_of(-0.1, 0.001, 0), HasSubstr("theta] expected a probability"));
  EXPECT_THAT(error_of(std::numeric_limits<double>::quiet_NaN(), 0.001, 0), HasSubstr("got nan"));
  EXPECT_THAT(error_of(0.5, -1.0, 0), HasSubstr("gamma] expected a finite number of at least 0"));
  EXPECT_THAT(error_of(0.5, std::numeric_limits<double>::infinity(), 0), HasSubstr("got inf"));
  EXPECT_THAT(error_of(0.5, 0.001, -1), HasSubstr("expected a global step of at least 0, got -1"));
  for (const double theta : {0.0, 1.0}) EXPECT_EQ(error_of(theta, 0.0, 5), "no error");
}

}  // namespace
}  // namespace equigrad::schedule
