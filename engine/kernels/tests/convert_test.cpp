// Every 16-bit number is widened exactly; fp32 numbers are rounded once, to nearest even. Both are
// compared with the values that the formats' definitions give, and with c10's conversions.
#include "engine/kernels/convert.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "conformance/testing/numbers.hpp"

namespace equigrad::kernels {
namespace {

using conformance::kernels::instruction_sets;
using conformance::kernels::name_of;
using conformance::kernels::Numbers;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Format {
  Element type;
  int fraction_bits;
  int bias;
};
constexpr Format kBf16{Element::Bf16, 7, 127};
constexpr Format kFp16{Element::Fp16, 10, 15};

// By the definition: (-1)^sign 2^(exponent - bias) 1.fraction, or 2^(1 - bias) 0.fraction.
float value_of(const Format& format, uint32_t bits) {
  const auto fraction = static_cast<float>(bits & ((1U << format.fraction_bits) - 1));
  const auto exponent = static_cast<int>((bits & 0x7FFFU) >> format.fraction_bits);
  const auto last = static_cast<int>(0x7FFFU >> format.fraction_bits);
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  if (exponent == last) return fraction == 0 ? sign * kInfinity : NAN;
  const auto whole = exponent == 0 ? 0.0F : std::ldexp(1.0F, format.fraction_bits);
  const int power = std::max(exponent, 1) - format.bias - format.fraction_bits;
  return sign * std::ldexp(whole + fraction, power);
}

Numbers widened_by_the_kernel(const Numbers& from, InstructionSet set) {
  const auto input = from.packed();
  auto output = Numbers(Element::Fp32, from.numel()).packed();
  widen(input.data() + element_bytes(from.type()), from.type(), from.numel(),
        reinterpret_cast<float*>(output.data() + sizeof(float)), set);
  return Numbers::unpacked(Element::Fp32, output);
}

Numbers narrowed_by_the_kernel(const Numbers& from, Element type, InstructionSet set) {
  const auto input = from.packed();
  auto output = Numbers(type, from.numel()).packed();
  narrow(reinterpret_cast<const float*>(input.data() + sizeof(float)), from.numel(),
         output.data() + element_bytes(type), type, set);
  return Numbers::unpacked(type, output);
}

TEST(Convert, WideningIsExactForEveryNumber) {
  for (const auto& format : {kBf16, kFp16}) {
    Numbers from(format.type, 65536), want(Element::Fp32, 65536);
    for (int64_t i = 0; i < 65536; ++i) {
      from.set_bits(i, static_cast<uint32_t>(i));
      want.set(i, value_of(format, static_cast<uint32_t>(i)));
    }
    for (const auto set : instruction_sets()) {
      const auto got = widened_by_the_kernel(from, set);
      EXPECT_EQ(got.first_difference(want), -1) << name_of(format.type) << ", " << name_of(set);
    }
  }
}

// All numbers of the format, the points half-way between neighbours (the last beyond the largest),
// and the fp32 neighbours of these.
Numbers decision_points(const Format& format) {
  std::vector<float> values;
  const uint32_t infinity = 0x7FFFU >> format.fraction_bits << format.fraction_bits;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = value_of(format, bits);
    const double high =
        bits + 1 < infinity ? value_of(format, bits + 1) : 2 * low - value_of(format, bits - 1);
    for (const double point : {low, (low + high) / 2}) {
      const auto value = static_cast<float>(point);
      for (const float x :
           {std::nextafter(value, -kInfinity), value, std::nextafter(value, kInfinity)}) {
        values.push_back(x);
        values.push_back(-x);
      }
    }
  }
  Numbers numbers(Element::Fp32, static_cast<int64_t>(values.size()));
  for (int64_t i = 0; i < numbers.numel(); ++i) numbers.set(i, values[static_cast<size_t>(i)]);
  return numbers;
}

// To nearest even, in fp64, which holds everything here exactly.
uint32_t nearest(const Format& format, float value) {
  if (std::isnan(value)) return format.type == Element::Bf16 ? 0x7FC0U : 0x7E00U;
  const uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  const uint32_t infinity = 0x7FFFU >> format.fraction_bits << format.fraction_bits;
  const double size = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return sign | infinity;
  const int power = std::max(size == 0 ? -1000 : std::ilogb(size), 1 - format.bias);
  const double units = std::nearbyint(std::ldexp(size, format.fraction_bits - power));
  // Carries go into the exponent by themselves.
  const auto bits = static_cast<uint32_t>(power - 1 + format.bias) << format.fraction_bits;
  return sign | std::min(bits + static_cast<uint32_t>(units), infinity);
}

TEST(Convert, NarrowingRoundsToNearestEven) {
  for (const auto& format : {kBf16, kFp16}) {
    for (const auto& from : {decision_points(format), Numbers::wild(Element::Fp32, 300'001, 3)}) {
      Numbers want(format.type, from.numel()), by_c10(format.type, from.numel());
      for (int64_t i = 0; i < from.numel(); ++i) {
        want.set_bits(i, nearest(format, from[i]));
        by_c10.set(i, from[i]);
      }
      EXPECT_EQ(want.first_difference(by_c10), -1);
      for (const auto set : instruction_sets()) {
        const auto got = narrowed_by_the_kernel(from, format.type, set);
        const int64_t at = got.first_difference(want);
        EXPECT_EQ(at, -1) << name_of(format.type) << ", " << name_of(set) << ", of "
                          << from[std::max<int64_t>(at, 0)];
      }
    }
  }
}

TEST(Convert, TheEdgesOfFp16) {
  const std::vector<std::pair<float, uint32_t>> edges{
      {0.0F, 0x0000U},       {-0.0F, 0x8000U},
      {0x1p-24F, 0x0001U},   {0x1p-25F, 0x0000U},  // half-way to the smallest: even is zero
      {0x1.8p-24F, 0x0002U}, {0x1.FF8p-15F, 0x03FFU},
      {0x1p-14F, 0x0400U},   {65504.0F, 0x7BFFU},
      {65519.996F, 0x7BFFU}, {65520.0F, 0x7C00U},
      {-65520.0F, 0xFC00U},  {kInfinity, 0x7C00U},
      {0x1p-149F, 0x0000U},  {std::numeric_limits<float>::max(), 0x7C00U}};
  for (const auto& [value, want] : edges) {
    EXPECT_EQ(narrowed<Fp16>(value).bits, want) << value;
  }
  EXPECT_EQ(narrowed<Fp16>(-NAN).bits, 0xFE00U);
  EXPECT_EQ(narrowed<Bf16>(-NAN).bits, 0x7FC0U);
}

TEST(Convert, EveryLengthHasTheBitsOfTheWholeAndWritesNothingBehindIt) {
  const auto wild = Numbers::wild(Element::Fp32, 131, 17);
  for (const auto type : {Element::Fp32, Element::Bf16, Element::Fp16}) {
    for (const auto set : instruction_sets()) {
      const auto whole = narrowed_by_the_kernel(wild, type, set);
      const auto back = widened_by_the_kernel(whole, set);
      for (int64_t numel = 0; numel <= 130; ++numel) {
        auto narrow_memory = Numbers(type, 131).packed();
        auto wide_memory = Numbers(Element::Fp32, 131).packed();
        const auto wild_memory = wild.packed();
        auto* to = narrow_memory.data() + element_bytes(type);
        narrow(reinterpret_cast<const float*>(wild_memory.data() + 4), numel, to, type, set);
        widen(to, type, numel, reinterpret_cast<float*>(wide_memory.data() + 4), set);
        auto want = whole, want_back = back;
        for (int64_t i = numel; i < 131; ++i) want.set_bits(i, 0), want_back.set_bits(i, 0);
        EXPECT_EQ(Numbers::unpacked(type, narrow_memory).first_difference(want), -1) << numel;
        EXPECT_EQ(Numbers::unpacked(Element::Fp32, wide_memory).first_difference(want_back), -1);
      }
    }
  }
}

}  // namespace
}  // namespace equigrad::kernels
