// Convert: bf16 and fp16 to fp32 and back, as IEEE 754 says.
//
//        sign  exponent  fraction
//   bf16    1         8         7   the upper half of an fp32 number
//   fp16    1         5        10   2^-24 .. 65504; from 65520 on a number rounds to infinity
//
// Invariants: widening is exact, subnormal numbers and infinities included; narrowing rounds once,
// to nearest even. Zeros keep their sign. A NaN stays a NaN: fp16 keeps its sign, as c10::Half
// does, bf16 becomes 0x7fc0, as c10::BFloat16; the rest of it is lost. There are no branches, so
// that a loop over widened() or narrowed() is done in vectors.
// Shapes: both sides of widen and narrow have `numel` elements and do not overlap.
// Errors: none.
// Depends on: kernels/element.hpp, kernels/instruction_set.hpp, the C++ standard library.
#pragma once

#include <bit>
#include <cstdint>

#include "engine/kernels/element.hpp"
#include "engine/kernels/instruction_set.hpp"

namespace equigrad::kernels {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

[[gnu::always_inline]] inline uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}
[[gnu::always_inline]] inline uint16_t bits_of(Bf16 value) { return value.bits; }
[[gnu::always_inline]] inline uint16_t bits_of(Fp16 value) { return value.bits; }

[[gnu::always_inline]] inline float widened(float value) { return value; }

[[gnu::always_inline]] inline float widened(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

[[gnu::always_inline]] inline float widened(Fp16 value) {
  const uint32_t sign = (value.bits & 0x8000U) << 16;
  const uint32_t rest = value.bits & 0x7FFFU;
  const uint32_t normal = (rest << 13) + (112U << 23);
  const uint32_t special = (rest << 13) + (224U << 23);  // infinite, NaN
  const auto subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24F);
  const uint32_t number = rest < 0x0400U ? subnormal : normal;
  return std::bit_cast<float>(sign | (rest < 0x7C00U ? number : special));
}

template <class To>
To narrowed(float value);

template <>
[[gnu::always_inline]] inline float narrowed<float>(float value) {
  return value;
}

template <>
[[gnu::always_inline]] inline Bf16 narrowed<Bf16>(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? 0x7FC0U : rounded)};
}

template <>
[[gnu::always_inline]] inline Fp16 narrowed<Fp16>(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t rest = bits & 0x7FFFFFFFU;
  const uint32_t normal = (rest - (112U << 23) + 0x0FFFU + ((rest >> 13) & 1U)) >> 13;
  // Next to 1/2 fp32 numbers are 2^-24 apart, as subnormal fp16 numbers are: the sum rounds.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + 0.5F) - std::bit_cast<uint32_t>(0.5F);
  const uint32_t number = rest < 0x38800000U ? subnormal : normal;   // 2^-14
  const uint32_t special = rest > 0x7F800000U ? 0x7E00U : 0x7C00U;   // NaN, infinity
  const uint32_t magnitude = rest < 0x477FF000U ? number : special;  // 65520
  return {static_cast<uint16_t>(sign | magnitude)};
}

// to[i] = from[i], in the formats of the two sides.
void widen(const void* from, Element from_type, int64_t numel, float* to,
           InstructionSet set = instruction_set());
void narrow(const float* from, int64_t numel, void* to, Element to_type,
            InstructionSet set = instruction_set());

}  // namespace equigrad::kernels
