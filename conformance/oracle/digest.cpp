#include "conformance/oracle/digest.hpp"

#include <ATen/ATen.h>

#include <limits>
#include <stdexcept>

namespace equigrad::conformance::oracle {
namespace {

// The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection that spreads every bit.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t key_of(std::string_view name, int64_t step, uint64_t element_bytes) {
  uint64_t key = mix(0x9e3779b97f4a7c15u + name.size());
  for (const char letter : name) key = mix(key ^ static_cast<unsigned char>(letter)) + 1;
  key = mix(key ^ static_cast<uint64_t>(step));
  return mix(key + element_bytes);
}

template <class Bits>
uint64_t sum_hashes(const void* data, int64_t numel, uint64_t key, int64_t begin, bool is_float) {
  const auto* bits = static_cast<const Bits*>(data);
  constexpr Bits kMinusZero = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  uint64_t sum = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const Bits raw = is_float && bits[i] == kMinusZero ? Bits{0} : bits[i];
    const auto index = static_cast<uint64_t>(begin + i);
    sum += mix(mix(key + index * 0x9e3779b97f4a7c15u) ^ static_cast<uint64_t>(raw));
  }
  return sum;
}

}  // namespace

uint64_t digest(std::string_view name, int64_t step, int64_t begin, const at::Tensor& values) {
  const at::Tensor flat = values.contiguous();
  if (!flat.device().is_cpu() || flat.is_complex()) {
    throw std::runtime_error("[oracle.digest] expected a real tensor on the CPU.");
  }
  const auto bytes = static_cast<uint64_t>(flat.element_size());
  const bool is_float = flat.is_floating_point();
  // Floats and integers of one width hold different values under the same bits.
  const uint64_t key = key_of(
      name, step, 2 * bytes + (is_float ? 1 : 0) + (flat.scalar_type() == at::kBFloat16 ? 64 : 0));
  const void* data = flat.const_data_ptr();
  switch (bytes) {
    case 1:
      return sum_hashes<uint8_t>(data, flat.numel(), key, begin, is_float);
    case 2:
      return sum_hashes<uint16_t>(data, flat.numel(), key, begin, is_float);
    case 4:
      return sum_hashes<uint32_t>(data, flat.numel(), key, begin, is_float);
    default:
      return sum_hashes<uint64_t>(data, flat.numel(), key, begin, is_float);
  }
}

}  // namespace equigrad::conformance::oracle
