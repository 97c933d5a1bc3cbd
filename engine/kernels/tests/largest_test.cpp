// The largest absolute value is one of the numbers, in any order and in any number of parts.
#include "engine/kernels/largest.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "conformance/testing/numbers.hpp"

namespace equigrad::kernels {
namespace {

using conformance::kernels::kElements;
using conformance::kernels::name_of;
using conformance::kernels::Numbers;

Largest of(const Numbers& numbers) {
  const auto memory = numbers.packed();
  Largest largest;
  largest.add(memory.data() + element_bytes(numbers.type()), numbers.type(), numbers.numel());
  return largest;
}

Numbers list(Element type, const std::vector<float>& values) {
  Numbers numbers(type, static_cast<int64_t>(values.size()));
  for (int64_t i = 0; i < numbers.numel(); ++i) numbers.set(i, values[static_cast<size_t>(i)]);
  return numbers;
}

TEST(Largest, IsTheLargestFiniteOneAndTheOthersAreCounted) {
  for (const auto type : kElements) {
    for (const int64_t numel : {0, 1, 2, 31, 33, 1000, 70'001}) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const auto numbers = Numbers::wild(type, numel, seed);
        double most = 0;
        int64_t non_finite_numel = 0;
        for (int64_t i = 0; i < numel; ++i) {
          const auto size = static_cast<double>(std::fabs(numbers[i]));
          std::isfinite(size) ? void(most = std::max(most, size)) : void(++non_finite_numel);
        }
        const auto got = of(numbers);
        ASSERT_EQ(got.value(), most) << name_of(type) << ", " << numel;
        ASSERT_EQ(got.non_finite_numel(), non_finite_numel) << name_of(type) << ", " << numel;
      }
    }
  }
}

TEST(Largest, HoldsTheEdgesOfEveryFormat) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto type : kElements) {
    EXPECT_EQ(of(list(type, {})).value(), 0.0);
    EXPECT_EQ(of(list(type, {-0.0F, 0.0F})).value(), 0.0);
    EXPECT_EQ(of(list(type, {1, -3, 2})).value(), 3.0);
    const auto bad = of(list(type, {infinity, NAN, -infinity, -2}));
    EXPECT_EQ(bad.value(), 2.0);
    EXPECT_EQ(bad.non_finite_numel(), 3);
  }
  EXPECT_EQ(of(list(Element::Fp16, {-0x1p-24F, 0})).value(), 0x1p-24);
  EXPECT_EQ(of(list(Element::Fp16, {0x1.FF8p-15F, 65504})).value(), 65504.0);
  EXPECT_EQ(of(list(Element::Bf16, {-0x1p-133F})).value(), 0x1p-133);
  EXPECT_EQ(of(list(Element::Fp32, {0x1p-149F})).value(), 0x1p-149);
  // More of them than 16 bits count.
  Numbers many(Element::Bf16, 200'000);
  for (int64_t i = 0; i < many.numel(); ++i) many.set(i, NAN);
  EXPECT_EQ(of(many).non_finite_numel(), 200'000);
}

TEST(Largest, PartsGiveTheWholeInAnyOrder) {
  for (const auto type : kElements) {
    const auto whole = Numbers::wild(type, 5000, 3);
    const auto memory = whole.packed();
    Largest grown;
    for (const auto& [begin, end] : {std::pair{4000, 5000}, {0, 1}, {1, 4000}}) {
      grown.add(memory.data() + (begin + 1) * element_bytes(type), type, end - begin);
    }
    EXPECT_EQ(grown.value(), of(whole).value());
    EXPECT_EQ(grown.non_finite_numel(), of(whole).non_finite_numel());
  }
}

}  // namespace
}  // namespace equigrad::kernels
