#include "conformance/oracle/underflow.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace equigrad::conformance::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

UnderflowLedger ledger(const std::vector<double>& gradient, double scale,
                       at::ScalarType dtype = at::kHalf) {
  UnderflowLedger made(dtype, scale);
  made.add(at::tensor(gradient, at::kDouble));
  return made;
}

TEST(Underflow, EveryElementIsInOneClass) {
  const auto all = ledger({0, 1, -2, 0x1p-25, -0x1p-24, 0x1p-15, 65504, -65536, kInfinity}, 1);
  EXPECT_EQ(all.numel(), 9);
  EXPECT_EQ(all.zero(), 1) << "2^-25 is a tie with 0, which is even";
  EXPECT_EQ(all.subnormal(), 2);
  EXPECT_EQ(all.overflow(), 2);
}

TEST(Underflow, TheScaleMovesThem) {
  const std::vector<double> tiny = {0x1p-30, 0x1p-26, 1};
  EXPECT_EQ(ledger(tiny, 1).zero(), 2);
  EXPECT_EQ(ledger(tiny, 8).zero(), 1);
  EXPECT_EQ(ledger(tiny, 8).subnormal(), 1);
  EXPECT_EQ(ledger(tiny, 65536).zero(), 0);
  EXPECT_EQ(ledger(tiny, 65536).overflow(), 1);
}

// What ATen's own rounding to 16 bits says of every element, near all the borders.
TEST(Underflow, AgreesWithTheConversionItSpeaksOf) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const double normal = dtype == at::kHalf ? 0x1p-14 : 0x1p-126;
    std::vector<float> values;
    for (const double border : {normal * (dtype == at::kHalf ? 0x1p-11 : 0x1p-8), normal,
                                dtype == at::kHalf ? 65520.0 : 0x1p127 * 1.99609375}) {
      auto value = static_cast<float>(border);
      for (int i = 0; i < 4; ++i) value = std::nextafter(value, 0.0f);
      for (int i = 0; i < 9; ++i, value = std::nextafter(value, HUGE_VALF)) values.push_back(value);
      for (int i = -40; i < 40; ++i)
        values.push_back(static_cast<float>(border * (1 + i * 0x1p-13)));
    }
    for (const float value : values) {
      const auto rounded = at::tensor({value}).to(dtype).to(at::kFloat).item<float>();
      UnderflowLedger one(dtype, 1);
      one.add(at::tensor({value}));
      EXPECT_EQ(one.zero(), rounded == 0 ? 1 : 0) << value;
      EXPECT_EQ(one.overflow(), std::isinf(rounded) ? 1 : 0) << value;
      EXPECT_EQ(one.subnormal(), rounded != 0 && static_cast<double>(rounded) < normal ? 1 : 0)
          << value;
    }
  }
}

TEST(Underflow, TheSmallestLosslessScaleLosesNothingAndItsHalfDoes) {
  at::manual_seed(1);
  for (int i = 0; i < 50; ++i) {
    const auto gradient = at::randn({40}) * at::exp2(at::randn({40}) * 2 - i + 20);
    UnderflowLedger first(at::kHalf, 1);
    first.add(gradient);
    const auto scale = first.smallest_lossless_scale();
    ASSERT_TRUE(scale) << i;
    UnderflowLedger at_it(at::kHalf, *scale), below(at::kHalf, *scale / 2);
    at_it.add(gradient);
    below.add(gradient);
    EXPECT_EQ(at_it.zero() + at_it.subnormal() + at_it.overflow(), 0) << *scale;
    EXPECT_GT(below.zero() + below.subnormal(), 0) << *scale;
  }
}

TEST(Underflow, ARangeWiderThanTheDtypeHasNoSuchScale) {
  EXPECT_FALSE(ledger({0x1p-20, 0x1p11}, 1).smallest_lossless_scale());
  EXPECT_EQ(ledger({0x1p-20, 0x1p9}, 1).smallest_lossless_scale(), 0x1p6);
  EXPECT_FALSE(ledger({1, kInfinity}, 1).smallest_lossless_scale());
  EXPECT_FALSE(ledger({1, std::nan("")}, 1).smallest_lossless_scale());
  EXPECT_EQ(ledger({0, 0}, 1).smallest_lossless_scale(), 1);
  EXPECT_EQ(ledger({0x1p10}, 1).smallest_lossless_scale(), 0x1p-24) << "less than 1 is a scale too";
}

TEST(Underflow, TensorsAddUp) {
  UnderflowLedger all(at::kHalf, 4);
  all.add(at::tensor({0x1p-30f, 1.0f}));
  all.add(at::tensor({0x1p-16f}));
  EXPECT_EQ(all.numel(), 3);
  EXPECT_EQ(all.zero(), 1);
  EXPECT_EQ(all.smallest_lossless_scale(), std::nullopt) << "2^16 is too much for the one";
}

TEST(Underflow, BadSettingsAreErrors) {
  EXPECT_THROW(UnderflowLedger(at::kFloat, 1), std::runtime_error);
  for (const double scale : {0.0, -2.0, 3.0, kInfinity, std::nan("")})
    EXPECT_THROW(UnderflowLedger(at::kHalf, scale), std::runtime_error) << scale;
}

}  // namespace
}  // namespace equigrad::conformance::oracle
