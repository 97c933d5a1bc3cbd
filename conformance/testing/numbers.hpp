// Numbers: arrays in a kernel's formats, with every kind of number in them.
//
// Invariants: element i depends on (seed, i) and the format only: any bit pattern, and often zeros,
// ones, subnormal numbers, the largest ones, infinities and NaNs of both signs. c10's types
// convert, not the kernels'. Two numbers are the same when their bits are, or when both are NaN.
// Shapes: flat.   Units: numel counts elements.   Errors: none.
// Depends on: c10's 16-bit types, engine/kernels, reference/models/data.hpp for its hash.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine/kernels/element.hpp"
#include "engine/kernels/instruction_set.hpp"
#include "reference/models/data.hpp"

namespace equigrad::conformance::kernels {

using equigrad::kernels::Element;
using equigrad::kernels::InstructionSet;

inline constexpr std::array kElements = {Element::Fp32, Element::Bf16, Element::Fp16};

inline std::string name_of(Element type) {
  return type == Element::Fp32 ? "fp32" : type == Element::Bf16 ? "bf16" : "fp16";
}

// Those that this processor has.
inline std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets{InstructionSet::Base};
  const auto best = equigrad::kernels::instruction_set();
  if (best != InstructionSet::Base) sets.push_back(InstructionSet::Avx2);
  if (best == InstructionSet::Avx512) sets.push_back(InstructionSet::Avx512);
  return sets;
}

inline std::string name_of(InstructionSet set) {
  return set == InstructionSet::Base ? "base" : set == InstructionSet::Avx2 ? "AVX2" : "AVX-512";
}

class Numbers {
 public:
  Numbers(Element type, int64_t numel) : type_(type), bits_(static_cast<std::size_t>(numel)) {}
  static Numbers wild(Element type, int64_t numel, uint64_t seed);

  Element type() const { return type_; }
  int64_t numel() const { return static_cast<int64_t>(bits_.size()); }
  uint32_t bits(int64_t i) const { return bits_[static_cast<std::size_t>(i)]; }
  void set_bits(int64_t i, uint32_t bits) { bits_[static_cast<std::size_t>(i)] = bits; }
  float operator[](int64_t i) const {
    const auto half = static_cast<uint16_t>(bits(i));
    if (type_ == Element::Fp32) return std::bit_cast<float>(bits(i));
    if (type_ == Element::Bf16) return c10::BFloat16(half, c10::BFloat16::from_bits());
    return c10::Half(half, c10::Half::from_bits());
  }
  void set(int64_t i, float value) {
    set_bits(i, type_ == Element::Fp32   ? std::bit_cast<uint32_t>(value)
                : type_ == Element::Bf16 ? uint32_t{c10::BFloat16(value).x}
                                         : uint32_t{c10::Half(value).x});
  }
  // As they lie in memory, one number of memory before them: aligned to the format, and to no
  // vector.
  std::vector<char> packed() const;
  static Numbers unpacked(Element type, const std::vector<char>& memory);
  // The first element that is another; -1 if there is none.
  int64_t first_difference(const Numbers& other) const;

 private:
  Element type_;
  std::vector<uint32_t> bits_;
};

inline Numbers Numbers::wild(Element type, int64_t numel, uint64_t seed) {
  // Of the three formats: 0, 1, the smallest, the largest subnormal, the smallest normal, the
  // largest, infinity, NaN.
  static constexpr std::array<std::array<uint32_t, 8>, 3> kEdges = {
      {{0, 0x3F800000U, 1, 0x007FFFFFU, 0x00800000U, 0x7F7FFFFFU, 0x7F800000U, 0x7FC00000U},
       {0, 0x3F80U, 1, 0x007FU, 0x0080U, 0x7F7FU, 0x7F80U, 0x7FC0U},
       {0, 0x3C00U, 1, 0x03FFU, 0x0400U, 0x7BFFU, 0x7C00U, 0x7E00U}}};
  Numbers numbers(type, numel);
  const uint32_t sign = type == Element::Fp32 ? 0x80000000U : 0x8000U;
  for (int64_t i = 0; i < numel; ++i) {
    const uint64_t word = reference::hash(reference::hash(seed) + static_cast<uint64_t>(i));
    auto bits = static_cast<uint32_t>(word) & (sign | (sign - 1));
    if (word >> 62 == 0) {
      bits = kEdges[static_cast<std::size_t>(type)][(word >> 40) % 8] | (bits & sign);
    } else if (word >> 62 == 1) {  // of a size that neither overflows nor vanishes
      bits = 0;
      numbers.set(i, std::ldexp(static_cast<float>(static_cast<int32_t>(word)), -33));
      continue;
    }
    numbers.set_bits(i, bits);
  }
  return numbers;
}

inline std::vector<char> Numbers::packed() const {
  const auto size = static_cast<std::size_t>(equigrad::kernels::element_bytes(type_));
  std::vector<char> memory((bits_.size() + 1) * size);
  for (std::size_t i = 0; i < bits_.size(); ++i)
    std::memcpy(memory.data() + (i + 1) * size, &bits_[i], size);
  return memory;
}

inline Numbers Numbers::unpacked(Element type, const std::vector<char>& memory) {
  const auto size = static_cast<std::size_t>(equigrad::kernels::element_bytes(type));
  Numbers numbers(type, static_cast<int64_t>(memory.size() / size) - 1);
  for (std::size_t i = 0; i < numbers.bits_.size(); ++i)
    std::memcpy(&numbers.bits_[i], memory.data() + (i + 1) * size, size);
  return numbers;
}

inline int64_t Numbers::first_difference(const Numbers& other) const {
  for (int64_t i = 0; i < numel(); ++i) {
    if (bits(i) == other.bits(i)) continue;
    if (!std::isnan((*this)[i]) || !std::isnan(other[i])) return i;
  }
  return -1;
}

}  // namespace equigrad::conformance::kernels
