// The exact sum is the one that its formula gives in whole numbers, in every order of terms and
// every cut of them into sums of sums, on every instruction set, for every kind of number.
#include "engine/kernels/exact_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "conformance/testing/numbers.hpp"

namespace equigrad::kernels {
namespace {

using conformance::kernels::instruction_sets;
using conformance::kernels::kElements;
using conformance::kernels::name_of;
using conformance::kernels::Numbers;

// The formula of the header, one element at a time.
float sum_by_formula(const std::vector<float>& terms) {
  float largest = 0, not_finite = 0;
  for (const float x : terms) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    if (!std::isfinite(x)) not_finite += x;
  }
  if (not_finite != 0) return not_finite;
  if (largest == 0) return 0;
  const int e = std::ilogb(largest);
  const int bin = (e - 1 + 320) / 32 - 10;  // rounded down
  const int last = 32 * (bin - 1) + 1;
  __int128 sum = 0;
  for (const float x : terms) {
    const double whole = std::ldexp(static_cast<double>(x), -last);
    if (std::fabs(whole) >= 1) sum += static_cast<__int128>(std::nearbyint(whole));
  }
  return std::ldexp(static_cast<float>(sum), last);
}

// rows[r][i], each as fp32.
using Columns = std::vector<std::vector<float>>;
std::vector<float> by_formula(const Columns& rows) {
  std::vector<float> sums;
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    std::vector<float> terms;
    for (const auto& row : rows) terms.push_back(row[i]);
    sums.push_back(sum_by_formula(terms));
  }
  return sums;
}

std::vector<float> row_of(Element type, int64_t numel, uint64_t seed, std::vector<char>& bytes) {
  const auto numbers = Numbers::wild(type, numel, seed);
  std::vector<float> row;
  for (int64_t i = 0; i < numel; ++i) row.push_back(numbers[i]);
  const auto packed = numbers.packed();
  bytes.insert(bytes.end(), packed.begin() + element_bytes(type), packed.end());
  return row;
}

int64_t first_difference(const std::vector<float>& got, const std::vector<float>& want) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i]))
      return static_cast<int64_t>(i);
  }
  return -1;
}

TEST(ExactSum, IsTheFormulasForEveryKindOfNumber) {
  uint64_t seed = 1;
  for (const auto type : kElements) {
    for (const int count : {1, 2, 3, 7}) {
      for (const int64_t n : {1, 5, 511, 512, 1600}) {
        std::vector<char> bytes;
        Columns rows;
        for (int row = 0; row < count; ++row) rows.push_back(row_of(type, n, ++seed, bytes));
        const auto want = by_formula(rows);
        for (const auto set : instruction_sets()) {
          std::vector<float> got(static_cast<std::size_t>(n), NAN);
          exact_row_sum(bytes.data(), type, count, n, got.data(), set);
          EXPECT_EQ(first_difference(got, want), -1)
              << name_of(type) << " " << count << " rows of " << n << " " << name_of(set);
        }
      }
    }
  }
}

// Of any sign, with exponents that are near to each other (spread 0) or anywhere.
float some_term(std::mt19937_64& random, int spread) {
  const auto mantissa = static_cast<float>(static_cast<int64_t>(random() >> 40) - (1 << 23));
  const auto width = static_cast<uint64_t>(2 * spread + 1);
  const int exponent = static_cast<int>(random() % width) - spread;
  return std::ldexp(mantissa, exponent - 23);
}

TEST(ExactSum, NoOrderAndNoSplitIntoSumsChangesABit) {
  std::mt19937_64 random(7);
  constexpr int kTerms = 24;
  for (const int spread : {0, 20, 40, 100, 126}) {
    for (int trial = 0; trial < 300; ++trial) {
      std::vector<float> terms;
      for (int i = 0; i < kTerms; ++i) terms.push_back(some_term(random, spread));
      if (trial % 4 == 0) terms[3] = -terms[9];
      const float want = sum_by_formula(terms);
      for (int order = 0; order < 8; ++order) {
        std::shuffle(terms.begin(), terms.end(), random);
        // Four sums of some of the terms, the first ones empty if it comes so.
        std::array<std::array<double, 2>, 4> parts{};
        for (const float& term : terms)
          exact_add(&term, Element::Fp32, 1, 1, false, parts[random() % 4].data());
        for (const std::size_t part : {1u, 2u, 3u})
          exact_merge(parts[part].data(), 1, parts[0].data());
        float got = NAN;
        exact_round(parts[0].data(), 1, &got);
        ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want))
            << got << " for " << want << ", spread " << spread << ", trial " << trial;
      }
    }
  }
}

float sum_of(const std::vector<float>& terms) {
  std::array<double, 2> sum{};
  for (const float& term : terms) exact_add(&term, Element::Fp32, 1, 1, false, sum.data());
  float rounded = NAN;
  exact_round(sum.data(), 1, &rounded);
  return rounded;
}

TEST(ExactSum, EdgesByHand) {
  const float most = std::numeric_limits<float>::max(), tiny = 0x1p-149F;
  EXPECT_EQ(std::bit_cast<uint32_t>(sum_of({})), 0u);
  EXPECT_EQ(std::bit_cast<uint32_t>(sum_of({-0.0F})), 0u) << "zeros of any sign sum to +0";
  EXPECT_EQ(std::bit_cast<uint32_t>(sum_of({1.5F, -1.5F, -0.0F})), 0u);
  EXPECT_EQ(sum_of({most, most}), INFINITY);
  EXPECT_EQ(sum_of({most, most, -most, -most, 1.0F}), 0) << "1 is below the last place of the sum";
  EXPECT_EQ(sum_of({most, most, -most}), most) << "no overflow on the way";
  EXPECT_EQ(sum_of({tiny, tiny, tiny}), 3 * tiny);
  EXPECT_EQ(sum_of({1.0F, 0x1p-24F}), 1.0F) << "a tie goes to even";
  EXPECT_EQ(sum_of({1.0F, 0x1p-24F, 0x1p-31F}), 1.0F + 0x1p-23F) << "which is none with more below";
  EXPECT_EQ(sum_of({1.0F, 0x1p-24F, -0x1p-31F}), 1.0F);
  EXPECT_EQ(sum_of({1.0F + 0x1p-23F, 0x1p-24F, -0x1p-31F}), 1.0F + 0x1p-23F);
  EXPECT_EQ(sum_of({-1.0F, -0x1p-24F, -0x1p-31F}), -1.0F - 0x1p-23F);
  // Two bins under the largest, and nearer to the last place than to zero: nothing in any order.
  const float below = 0x1.8p32F, large = 0x1p70F;
  EXPECT_EQ(sum_of({below, large, -large}), 0);
  EXPECT_EQ(sum_of({large, below, -large}), 0);
  EXPECT_EQ(sum_of({large, -large, below}), 0);
  EXPECT_EQ(sum_of({large, 0x1.8p33F, -large}), 0x1p34F) << "1.5 last places: to even";
}

TEST(ExactSum, WhatIsNotFiniteStaysSoInEveryOrder) {
  const float most = std::numeric_limits<float>::max();
  const auto in_all_orders = [](std::vector<float> terms, auto&& holds) {
    std::sort(terms.begin(), terms.end());
    do EXPECT_TRUE(holds(sum_of(terms)));
    while (std::next_permutation(terms.begin(), terms.end()));
  };
  in_all_orders({INFINITY, 1.0F, -most, most}, [](float sum) { return sum == INFINITY; });
  in_all_orders({-INFINITY, -INFINITY, most}, [](float sum) { return sum == -INFINITY; });
  const auto is_the_nan = [](float sum) { return std::bit_cast<uint32_t>(sum) == 0x7FC00000u; };
  in_all_orders({INFINITY, -INFINITY, 1.0F}, is_the_nan);
  for (const float nan : {std::bit_cast<float>(0xFFC12345u), std::bit_cast<float>(0x7FC00001u)})
    for (const auto& terms : {std::vector<float>{nan, 1.0F}, {1.0F, nan}, {INFINITY, nan}})
      EXPECT_TRUE(is_the_nan(sum_of(terms)));
}

TEST(ExactSum, AsManyTermsAsItPromises) {
  // All as large as their bin allows: the upper bin is at its limit.
  const float largest = std::bit_cast<float>(std::bit_cast<uint32_t>(0x1p33F) - 1);
  const std::vector<float> terms(static_cast<std::size_t>(kMostExactTerms), largest);
  std::array<double, 2> sum{};
  for (const float sign : {1.0F, -1.0F}) {
    sum = {};
    for (const float term : terms) {
      const float signed_term = sign * term;
      exact_add(&signed_term, Element::Fp32, 1, 1, false, sum.data());
    }
    float got = NAN;
    exact_round(sum.data(), 1, &got);
    EXPECT_EQ(got, static_cast<float>(sign * static_cast<double>(largest) * kMostExactTerms));
  }
}

}  // namespace
}  // namespace equigrad::kernels
