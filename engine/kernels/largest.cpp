#include "engine/kernels/largest.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>

#include "engine/kernels/convert.hpp"
#include "engine/kernels/parallel.hpp"

namespace equigrad::kernels {
namespace {

constexpr int64_t kBlockNumel = int64_t{1} << 15;  // a count of them fits 16 bits

template <class Bits>
struct Found {
  Bits most = 0;
  Bits non_finite_numel = 0;
};

// Without their sign, the numbers of a format are in the order of their bits; infinities and NaNs
// are the last.
template <class Number, class Bits>
[[gnu::always_inline]] inline void scan(const Number* __restrict values, int64_t numel,
                                        Bits infinity, Found<Bits>* found) {
  constexpr auto kMagnitude = static_cast<Bits>(std::numeric_limits<Bits>::max() >> 1);
  Bits most = 0, non_finite_numel = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const auto bits = static_cast<Bits>(bits_of(values[i]) & kMagnitude);
    const bool finite = bits < infinity;
    most = std::max(most, finite ? bits : Bits{0});
    non_finite_numel = static_cast<Bits>(non_finite_numel + (finite ? 0 : 1));
  }
  *found = {most, non_finite_numel};
}

template <class Number, class Bits>
Found<int64_t> scan_blocks(const void* values, int64_t numel, Bits infinity) {
  Found<int64_t> all;
  for (int64_t start = 0; start < numel; start += kBlockNumel) {
    const auto* from = static_cast<const Number*>(values) + start;
    const int64_t width = std::min(kBlockNumel, numel - start);
    Found<Bits> found;
    auto* to = &found;
    run_on(
        instruction_set(), [=]() __attribute__((always_inline)) {
          scan<Number, Bits>(from, width, infinity, to);
        });
    all.most = std::max<int64_t>(all.most, found.most);
    all.non_finite_numel += found.non_finite_numel;
  }
  return all;
}

Found<int64_t> scan_numbers(const void* values, Element type, int64_t numel) {
  if (type == Element::Fp32) return scan_blocks<float, uint32_t>(values, numel, 0x7F800000U);
  const auto found = type == Element::Bf16 ? scan_blocks<Bf16, uint16_t>(values, numel, 0x7F80U)
                                           : scan_blocks<Fp16, uint16_t>(values, numel, 0x7C00U);
  const auto bits = static_cast<uint16_t>(found.most);
  const float most = type == Element::Bf16 ? widened(Bf16{bits}) : widened(Fp16{bits});
  return {bits_of(most), found.non_finite_numel};
}

}  // namespace

void Largest::add(const void* values, Element type, int64_t numel) {
  std::mutex adding;
  parallel_for(numel, [&](int64_t begin, int64_t end) {
    const auto* from = static_cast<const char*>(values) + begin * element_bytes(type);
    const auto found = scan_numbers(from, type, end - begin);
    const std::lock_guard lock(adding);
    words_[0] = std::max(words_[0], found.most);
    words_[1] += found.non_finite_numel;
  });
}

double Largest::value() const { return std::bit_cast<float>(static_cast<uint32_t>(words_[0])); }

}  // namespace equigrad::kernels
