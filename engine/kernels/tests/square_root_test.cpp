// The square root is rounded once: the root taken in fp64 and rounded to fp32 is that (Figueroa
// 1995: 53 >= 2 * 24 + 2).
#include "engine/kernels/square_root.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/models/data.hpp"

namespace equigrad::kernels {
namespace {

float one_root(float x) {
  float root = 0;
  square_root(&x, 1, &root);
  return root;
}

TEST(SquareRoot, IsTheNearestFloatOfAMillionNumbers) {
  std::vector<float> input(1'000'003);
  for (std::size_t i = 0; i < input.size(); ++i) {
    // Every eighth is subnormal.
    const auto bits = static_cast<uint32_t>(reference::hash(i) >> 33);
    input[i] = std::bit_cast<float>(i % 8 == 0 ? bits & 0x007FFFFFU : bits % 0x7F800000U);
  }
  std::vector<float> output(input.size());
  square_root(input.data(), static_cast<int64_t>(input.size()), output.data());
  int64_t differing = 0;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const auto want = static_cast<float>(std::sqrt(static_cast<double>(input[i])));
    if (std::bit_cast<uint32_t>(output[i]) != std::bit_cast<uint32_t>(want)) ++differing;
  }
  EXPECT_EQ(differing, 0);
  // In place.
  square_root(input.data(), static_cast<int64_t>(input.size()), input.data());
  EXPECT_EQ(input, output);
}

TEST(SquareRoot, KeepsTheEdgesOfTheFormat) {
  EXPECT_EQ(one_root(0.0F), 0.0F);
  EXPECT_TRUE(std::signbit(one_root(-0.0F)));
  EXPECT_EQ(one_root(std::numeric_limits<float>::infinity()),
            std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(one_root(-1.0F)));
  EXPECT_EQ(one_root(std::ldexp(1.0F, -148)), std::ldexp(1.0F, -74));
}

}  // namespace
}  // namespace equigrad::kernels
