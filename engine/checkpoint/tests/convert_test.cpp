// convert() against a definition of its own: a number of a type is what std::ldexp() makes of its
// fields, and what is nearest changes only in the middle between two neighbours, so that all
// middles, and what lies beside them, are all there is to test.
#include "engine/checkpoint/convert.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

struct Fields {
  ElementType type;
  int exponent_bits, mantissa_bits;
};
const Fields kHalf{ElementType::F16, 5, 10}, kBrain{ElementType::BF16, 8, 7},
    kSingle{ElementType::F32, 8, 23};

std::uint64_t infinite(const Fields& of) {
  return ((std::uint64_t{1} << of.exponent_bits) - 1) << of.mantissa_bits;
}

double value(const Fields& of, std::uint64_t size) {
  const int exponent = static_cast<int>(size >> of.mantissa_bits);
  const std::uint64_t one = std::uint64_t{1} << of.mantissa_bits, mantissa = size & (one - 1);
  const int bias = (1 << (of.exponent_bits - 1)) - 1;
  return std::ldexp(static_cast<double>(exponent == 0 ? mantissa : one + mantissa),
                    std::max(exponent, 1) - bias - of.mantissa_bits);
}

template <class From>
std::uint64_t bits_in(From from, ElementType from_type, ElementType to_type) {
  std::uint64_t to = 0;
  convert(&from, from_type, &to, to_type, 1);
  return to;
}
std::uint64_t of_double(double number, const Fields& to) {
  return bits_in(number, ElementType::F64, to.type);
}
std::uint64_t of_float(float number, const Fields& to) {
  return bits_in(number, ElementType::F32, to.type);
}

// What `size` and the next size are the nearest of: the middle, and what lies beside it in doubles
// and in floats. Behind the largest number the next is that of the same spacing: infinity.
void expect_rounded_at(const Fields& of, std::uint64_t size) {
  const std::uint64_t sign = std::uint64_t{1} << (of.exponent_bits + of.mantissa_bits);
  const double low = value(of, size), high = value(of, size + 1), middle = low + (high - low) / 2;
  const std::uint64_t even = size + size % 2;
  const double below = std::nextafter(middle, low), above = std::nextafter(middle, high);
  ASSERT_EQ(of_double(low, of), size);
  ASSERT_EQ(of_double(below, of), size);
  ASSERT_EQ(of_double(middle, of), even) << size;
  ASSERT_EQ(of_double(above, of), size + 1) << size;
  ASSERT_EQ(of_double(-above, of), sign | (size + 1));
  ASSERT_EQ(of_double(-middle, of), sign | even);
  const auto single = static_cast<float>(middle);
  if (single != middle) return;  // floats have no such number
  ASSERT_EQ(of_float(std::nextafter(single, static_cast<float>(low)), of), size);
  ASSERT_EQ(of_float(single, of), even);
  ASSERT_EQ(of_float(std::nextafter(single, static_cast<float>(high)), of), size + 1);
}

TEST(Convert, EverySixteenBitNumberHasItsNeighbourhood) {
  for (const Fields& of : {kHalf, kBrain})
    for (std::uint64_t size = 0; size < infinite(of); ++size)
      ASSERT_NO_FATAL_FAILURE(expect_rounded_at(of, size));
}

TEST(Convert, SinglesAreRoundedFromDoublesAsTheProcessorDoes) {
  std::vector<std::uint64_t> sizes = {0, 1, 2, infinite(kSingle) - 1, infinite(kSingle) - 2};
  for (std::uint64_t exponent = 0; exponent < 255; ++exponent)
    for (const std::uint64_t mantissa : {0x0U, 0x1U, 0x400001U, 0x7FFFFEU, 0x7FFFFFU})
      sizes.push_back(exponent << 23 | mantissa);
  for (const std::uint64_t size : sizes) {
    if (size + 1 < infinite(kSingle)) ASSERT_NO_FATAL_FAILURE(expect_rounded_at(kSingle, size));
    const double low = value(kSingle, size), high = value(kSingle, size + 1);
    for (double at : {low, std::nextafter(low, 1e300), low + (high - low) / 2, high, -low}) {
      const auto wanted = static_cast<float>(at);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &wanted, sizeof bits);
      ASSERT_EQ(of_double(at, kSingle), bits) << at;
    }
  }
}

TEST(Convert, EverySixteenBitNumberIsTheSameInLargerTypesAndBack) {
  for (const Fields& of : {kHalf, kBrain})
    for (std::uint64_t bits = 0; bits < 65536; ++bits) {
      const std::uint64_t size = bits % 32768;
      const double wanted = (bits >= 32768 ? -1 : 1) * value(of, size);
      double wide = 0;
      convert(&bits, of.type, &wide, ElementType::F64, 1);
      float single = 0;
      convert(&bits, of.type, &single, ElementType::F32, 1);
      if (size > infinite(of)) {
        ASSERT_TRUE(std::isnan(wide) && std::isnan(single)) << bits;
        ASSERT_GT(of_double(wide, of) % 32768, infinite(of)) << bits;
        ASSERT_GT(of_float(single, of) % 32768, infinite(of)) << bits;
        continue;
      }
      if (size == infinite(of)) {
        ASSERT_EQ(std::isinf(wide) + std::isinf(single), 2) << bits;
      } else {
        ASSERT_EQ(wide, wanted) << bits;
        ASSERT_EQ(static_cast<double>(single), wanted) << bits;
      }
      ASSERT_EQ(std::signbit(wide), bits >= 32768);
      ASSERT_EQ(std::signbit(single), bits >= 32768);
      ASSERT_EQ(of_double(wide, of), bits);
      ASSERT_EQ(of_float(single, of), bits);
    }
}

TEST(Convert, HalvesAndBrainFloatsToEachOtherAreThoseOfTheirDoubles) {
  for (std::uint64_t bits = 0; bits < 65536; ++bits)
    for (const auto& [from, to] : {std::pair{kHalf, kBrain}, std::pair{kBrain, kHalf}}) {
      double wide = 0;
      convert(&bits, from.type, &wide, ElementType::F64, 1);
      ASSERT_EQ(bits_in(bits, from.type, to.type), of_double(wide, to)) << bits;
    }
}

// 1 + 2^-8 + 2^-40 is nearer to the upper neighbour in BF16, but a float would be in the middle.
TEST(Convert, ADoubleIsNotRoundedTwice) {
  EXPECT_EQ(of_double(1 + std::ldexp(1, -8) + std::ldexp(1, -40), kBrain), 0x3F81U);
  EXPECT_EQ(of_double(1 + std::ldexp(1, -8), kBrain), 0x3F80U);
  EXPECT_EQ(of_double(1 + std::ldexp(1, -11) + std::ldexp(1, -40), kHalf), 0x3C01U);
}

TEST(Convert, WhatIsTooLargeIsInfiniteAndWhatIsTooSmallIsZero) {
  EXPECT_EQ(of_double(65519.99, kHalf), 0x7BFFU);
  EXPECT_EQ(of_double(65520, kHalf), 0x7C00U);
  EXPECT_EQ(of_double(-1e300, kHalf), 0xFC00U);
  EXPECT_EQ(of_double(1e300, kBrain), 0x7F80U);
  EXPECT_EQ(of_float(std::numeric_limits<float>::max(), kBrain), 0x7F80U);
  EXPECT_EQ(of_double(std::ldexp(1, -25), kHalf), 0U);
  EXPECT_EQ(of_double(-std::ldexp(1, -26), kHalf), 0x8000U);
  EXPECT_EQ(of_double(std::numeric_limits<double>::denorm_min(), kSingle), 0U);
  EXPECT_EQ(of_double(-0.0, kBrain), 0x8000U);
}

TEST(Convert, ANanWhoseBitsAreCutOffIsStillOne) {
  EXPECT_EQ(bits_in(std::uint32_t{0x7F800001}, ElementType::F32, ElementType::BF16), 0x7FC0U);
  EXPECT_EQ(bits_in(std::uint32_t{0xFF800001}, ElementType::F32, ElementType::F16), 0xFE00U);
  EXPECT_EQ(bits_in(std::uint64_t{0x7FF0000000000001}, ElementType::F64, ElementType::F32),
            0x7FC00000U);
}

TEST(Convert, ManyNumbersThatAreNotAligned) {
  std::vector<char> from(1 + 4 * 300), to(1 + 2 * 300), back(1 + 4 * 300);
  for (int i = 0; i < 300; ++i) {
    const auto number = static_cast<float>(i - 150);
    std::memcpy(from.data() + 1 + 4 * i, &number, 4);
  }
  convert(from.data() + 1, ElementType::F32, to.data() + 1, ElementType::F16, 300);
  convert(to.data() + 1, ElementType::F16, back.data() + 1, ElementType::F32, 300);
  EXPECT_EQ(from, back);
  convert(nullptr, ElementType::F32, nullptr, ElementType::F32, 0);
}

TEST(Convert, TheSameTypeKeepsItsBitsAndOthersAreRefused) {
  const std::uint32_t signalling = 0x7F800001U;
  EXPECT_EQ(bits_in(signalling, ElementType::F32, ElementType::F32), signalling);
  for (const auto type : {ElementType::Bool, ElementType::U8, ElementType::I64}) {
    EXPECT_FALSE(is_floating_point(type));
    EXPECT_THROW(bits_in(1.0F, ElementType::F32, type), Error);
    EXPECT_THROW(bits_in(1.0F, type, ElementType::F32), Error);
  }
  for (const auto type : {ElementType::F16, ElementType::BF16, ElementType::F32, ElementType::F64})
    EXPECT_TRUE(is_floating_point(type));
}

}  // namespace
}  // namespace equigrad::checkpoint
