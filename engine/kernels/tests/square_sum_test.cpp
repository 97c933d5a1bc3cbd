// The sum of squares is exact until its one rounding, in any order and in any number of parts.
#include "engine/kernels/square_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "conformance/testing/numbers.hpp"
#include "reference/models/data.hpp"
#include "reference/norm.hpp"

namespace equigrad::kernels {
namespace {

using conformance::kernels::name_of;
using conformance::kernels::Numbers;
using Floats = std::vector<float>;

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

SquareSum of(const Floats& values) {
  SquareSum sum;
  sum.add(values.data(), Element::Fp32, static_cast<int64_t>(values.size()));
  return sum;
}

// Every finite bit pattern, subnormal ones too.
Floats wild(std::size_t numel, uint64_t seed) {
  Floats values(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(reference::hash(seed + i) >> 32));
    if (!std::isfinite(values[i])) values[i] = kSmallest;
  }
  return values;
}

double by_the_reference(const Floats& values) {
  reference::ExactSum sum;
  for (const float value : values) sum.add_square(static_cast<double>(value));
  return sum.value();
}

TEST(SquareSum, IsTheSumOfIntegers) {
  Floats values(300'000);
  __int128 want = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto integer = static_cast<int64_t>(reference::hash(i) >> 40);  // below 2^24
    values[i] = static_cast<float>(i % 2 == 0 ? integer : -integer);
    want += static_cast<__int128>(integer) * integer;
  }
  EXPECT_GT(want, __int128{1} << 60) << "more than a double holds";
  EXPECT_EQ(of(values).value(), static_cast<double>(want));
}

TEST(SquareSum, IsTheReferencesSumOfWildNumbersInAnyOrder) {
  auto values = wild(5001, 1);
  const double want = by_the_reference(values);
  EXPECT_EQ(of(values).value(), want);
  std::sort(values.begin(), values.end());
  EXPECT_EQ(of(values).value(), want);
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(of(values).value(), want);
}

// Whole blocks, whose numbers lie so many powers of two apart; and a few numbers behind them.
TEST(SquareSum, OfBlocksIsTheReferencesHoweverFarApartTheirNumbersAre) {
  for (const int largest : {-140, -126, -109, -108, -107, 0, 84, 85, 86, 126})
    for (const int spread : {1, 5, 16, 17, 18, 19, 20, 60}) {
      Floats values(3 * 512 + 7);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const uint64_t bits = reference::hash(i + 1);
        const auto fraction = static_cast<float>((bits & 0xFFFFFF) | 0x800001) * 0x1p-23F;
        const auto below = static_cast<int>((bits >> 32) % static_cast<uint64_t>(spread));
        values[i] = std::ldexp(i % 3 == 0 ? -fraction : fraction, largest - below);
      }
      EXPECT_EQ(of(values).value(), by_the_reference(values)) << largest << " " << spread;
    }
}

TEST(SquareSum, HoldsTheSmallestAndTheLargestNumbers) {
  EXPECT_EQ(of({kSmallest}).value(), std::ldexp(1.0, -298));
  EXPECT_EQ(of({kSmallest, -kSmallest, 3 * kSmallest}).value(), std::ldexp(11.0, -298));
  // In each of its four lanes more squares than a counter of 64 bits holds.
  const Floats largest(300'001, kLargest);
  EXPECT_EQ(of(largest).value(), by_the_reference(largest));
  EXPECT_EQ(of({kLargest, kSmallest}).value(), static_cast<double>(kLargest) * kLargest);
  EXPECT_EQ(of({}).value(), 0.0);
  EXPECT_EQ(of({0.0F, -0.0F}).value(), 0.0);
}

TEST(SquareSum, RoundsOnceWithTiesToEven) {
  const float half = std::ldexp(1.0F, 26);  // two of its squares are 2^53, whose neighbour is + 2
  const double big = std::ldexp(1.0, 53);
  EXPECT_EQ(of({half, half, 1}).value(), big);
  EXPECT_EQ(of({half, half, 1, kSmallest}).value(), big + 2);
  EXPECT_EQ(of({half, half, 1, 1}).value(), big + 2);
  EXPECT_EQ(of({half, half, 1, 1, 1}).value(), big + 4);
  EXPECT_EQ(of({half, half, 0.5F, 0.5F, 0.5F}).value(), big);
}

TEST(SquareSum, PartsMayBeAddedInAnyOrder) {
  const auto values = wild(10'000, 5);
  std::vector<SquareSum> parts;
  for (int64_t begin = 0, numel = 1; begin < 10'000; begin += numel, numel = 2 * numel + 1) {
    parts.emplace_back();
    parts.back().add(values.data() + begin, Element::Fp32,
                     std::min<int64_t>(numel, 10'000 - begin));
  }
  SquareSum merged;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    for (int word = 0; word < kWords; ++word) merged.words()[word] += part->words()[word];
  }
  EXPECT_EQ(merged.value(), of(values).value());
  // One sum that is added to is as good as several.
  SquareSum grown;
  grown.add(values.data(), Element::Fp32, 4321);
  grown.add(values.data() + 4321, Element::Fp32, 10'000 - 4321);
  EXPECT_EQ(grown.value(), of(values).value());
}

TEST(SquareSum, WordsThatRunOverFromManyPartsStillCount) {
  // What 2^20 ranks with the same numbers add up to: the low words are far beyond their 40 bits.
  const auto values = wild(70'000, 8);
  SquareSum sum = of(values);
  const double one = sum.value();
  for (int word = 0; word < 2 * kExponents; word += 2) {
    EXPECT_GE(sum.words()[word], 0);
    EXPECT_LT(sum.words()[word], int64_t{1} << 40) << "2^20 of it must not run over";
  }
  for (int word = 0; word < kWords; ++word) sum.words()[word] *= int64_t{1} << 20;
  EXPECT_EQ(sum.value(), std::ldexp(one, 20));
  SquareSum full;
  full.words()[2 * 127] = int64_t{1} << 62;
  full.words()[2 * 127 + 1] = int64_t{1} << 62;
  EXPECT_EQ(full.value(), std::ldexp(1.0, 62 - 46) + std::ldexp(1.0, 102 - 46));
}

TEST(SquareSum, NumbersThatAreNotFiniteAreCountedOnly) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto sum = of({3, infinity, -infinity, std::nanf(""), 4});
  EXPECT_EQ(sum.non_finite_numel(), 3);
  EXPECT_EQ(sum.value(), 25.0);
}

TEST(SquareSum, NumbersIn16BitsAreAddedAsTheyAre) {
  for (const auto type : {Element::Bf16, Element::Fp16}) {
    for (const int64_t numel : {0, 1, 5, 70'003}) {
      const auto numbers = Numbers::wild(type, numel, 4);
      reference::ExactSum want;
      int64_t non_finite_numel = 0;
      for (int64_t i = 0; i < numel; ++i) {
        if (std::isfinite(numbers[i])) want.add_square(static_cast<double>(numbers[i]));
        if (!std::isfinite(numbers[i])) ++non_finite_numel;
      }
      const auto memory = numbers.packed();
      SquareSum sum;
      sum.add(memory.data() + 2, type, numel);
      EXPECT_EQ(sum.value(), want.value()) << name_of(type) << ", " << numel;
      EXPECT_EQ(sum.non_finite_numel(), non_finite_numel) << name_of(type) << ", " << numel;
    }
  }
}

TEST(SquareSum, HoldsTheSmallestAndTheLargestNumbersOfFp16) {
  for (const auto& [bits, square] : {std::pair{0x0001U, 0x1p-48},
                                     {0x83FFU, 1023.0 * 1023.0 * 0x1p-48},
                                     {0x7BFFU, 65504.0 * 65504.0}}) {
    const auto number = static_cast<uint16_t>(bits);
    SquareSum sum;
    sum.add(&number, Element::Fp16, 1);
    EXPECT_EQ(sum.value(), square);
  }
}

}  // namespace
}  // namespace equigrad::kernels
