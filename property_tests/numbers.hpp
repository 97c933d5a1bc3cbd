// Numbers: tensors by counter, the same on every rank that asks with the same words.
//
// Invariants: element i depends on (seed, stream, i) only. spread() has exponents from -12 to 12,
// so that almost every sum rounds; wild() has every finite bit pattern; tiny() is subnormal or just
// above (the smallest four exponents); whole_numbers() are integers with |x| <= 200, exact in bf16
// and in any sum of 2^16 of them; uniform() are multiples of size / 2^22 in [-size, size].
// Shapes: flat fp32 [numel].   Errors: none.
// Depends on: ATen, reference/models/data.hpp for its hash.
#pragma once

#include <ATen/ATen.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "reference/models/data.hpp"

namespace equigrad::property_tests {

inline uint64_t word(uint64_t seed, uint64_t stream, int64_t i) {
  return reference::hash(reference::hash(seed * 1009 + stream) + static_cast<uint64_t>(i));
}

template <class Make>
at::Tensor numbers(uint64_t seed, uint64_t stream, int64_t numel, Make make) {
  auto tensor = at::empty({numel}, at::kFloat);
  auto* values = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < numel; ++i) values[i] = make(word(seed, stream, i));
  return tensor;
}

inline at::Tensor spread(uint64_t seed, uint64_t stream, int64_t numel) {
  return numbers(seed, stream, numel, [](uint64_t bits) {
    const auto mantissa = static_cast<float>(static_cast<int32_t>(bits >> 39) - (1 << 24));
    return std::ldexp(mantissa, static_cast<int>(bits % 25) - 36);
  });
}

inline at::Tensor wild(uint64_t seed, uint64_t stream, int64_t numel) {
  return numbers(seed, stream, numel, [](uint64_t bits) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits >> 32));
    return std::isfinite(value) ? value : 1.0F;
  });
}

inline at::Tensor tiny(uint64_t seed, uint64_t stream, int64_t numel) {
  return numbers(seed, stream, numel, [](uint64_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits >> 32) & 0x81FFFFFFU);
  });
}

inline at::Tensor whole_numbers(uint64_t seed, uint64_t stream, int64_t numel) {
  return numbers(seed, stream, numel,
                 [](uint64_t bits) { return static_cast<float>(bits % 401) - 200.0F; });
}

inline at::Tensor uniform(uint64_t seed, uint64_t stream, int64_t numel, float size) {
  return numbers(seed, stream, numel, [size](uint64_t bits) {
    return size * (static_cast<float>(bits >> 41) / static_cast<float>(1 << 22) - 1.0F);
  });
}

}  // namespace equigrad::property_tests
