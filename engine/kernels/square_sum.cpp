#include "engine/kernels/square_sum.hpp"

#include <algorithm>
#include <cmath>

#include "engine/kernels/convert.hpp"

namespace equigrad::kernels {
namespace {

constexpr int kLowBits = 40;
constexpr int64_t kFlushNumel = int64_t{1}
                                << 15;  // squares are below 2^48, so 2^15 of them fit a uint64
constexpr int kLanes = 4;               // independent counters: runs of equal exponents do not wait

// The exact sum as a fixed-point number with bit 0 worth 2^-300: limbs of 32 bits, least
// significant first.
class FixedPoint {
 public:
  void add(unsigned __int128 value, int shift) {
    int limb = shift / 32;
    const int bits = shift % 32;
    uint64_t carry = 0;
    for (int part = 0; part < 6 || carry != 0; ++part, ++limb) {
      const int from = 32 * part - bits;
      uint64_t piece = 0;
      if (from < 0) {
        piece = static_cast<uint32_t>(static_cast<uint64_t>(value) << bits);
      } else if (from < 128) {
        piece = static_cast<uint32_t>(value >> from);
      }
      const uint64_t sum = limbs_[static_cast<size_t>(limb)] + piece + carry;
      limbs_[static_cast<size_t>(limb)] = static_cast<uint32_t>(sum);
      carry = sum >> 32;
    }
  }

  double rounded() const {
    int top = kLimbs - 1;
    while (top > 0 && limbs_[static_cast<size_t>(top)] == 0) --top;
    const int lowest = std::max(0, top - 2);
    unsigned __int128 head = 0;
    for (int limb = top; limb >= lowest; --limb) {
      head = (head << 32) | limbs_[static_cast<size_t>(limb)];
    }
    bool sticky = false;
    for (int limb = 0; limb < lowest; ++limb) sticky |= limbs_[static_cast<size_t>(limb)] != 0;
    // At least 65 significant bits are in `head` when something lies below it: keep 64, the last
    // one sticky, so that the one rounding that follows is the rounding of the exact sum. The
    // conversion of a uint64 rounds to even.
    int dropped = 0;
    while ((head >> 64) != 0) {
      sticky |= (head & 1) != 0;
      head >>= 1;
      ++dropped;
    }
    const uint64_t kept = static_cast<uint64_t>(head) | (sticky ? 1U : 0U);
    return std::ldexp(static_cast<double>(kept), 32 * lowest + dropped - 300);
  }

 private:
  static constexpr int kLimbs = 26;  // 2 * 254 + 87 bits and room for the carry
  std::array<uint32_t, kLimbs> limbs_{};
};

// A finite number is fraction * 2^(e + kBelowFp32 - 127 - kFractionBits), e at least 1.
struct Fp32Format {
  using Number = float;
  static constexpr uint32_t kFractionBits = 23, kLastExponent = 255, kBelowFp32 = 0;
};
struct Bf16Format {
  using Number = Bf16;
  static constexpr uint32_t kFractionBits = 7, kLastExponent = 255, kBelowFp32 = 0;
};
struct Fp16Format {
  using Number = Fp16;
  static constexpr uint32_t kFractionBits = 10, kLastExponent = 31, kBelowFp32 = 112;
};

}  // namespace

template <class Format>
void SquareSum::add_numbers(const typename Format::Number* values, int64_t numel) {
  constexpr uint32_t kLast = Format::kLastExponent;
  constexpr uint32_t kHidden = 1U << Format::kFractionBits;
  std::array<std::array<uint64_t, kLast + 1>, kLanes> counters{};
  for (int64_t start = 0; start < numel; start += kFlushNumel * kLanes) {
    const int64_t end = std::min(numel, start + kFlushNumel * kLanes);
    for (int64_t i = start; i < end; ++i) {
      const uint32_t bits = bits_of(values[i]);
      const uint32_t exponent = (bits >> Format::kFractionBits) & kLast;
      const uint32_t fraction = (bits & (kHidden - 1)) | (exponent != 0 ? kHidden : 0U);
      const uint64_t mantissa = fraction << (23 - Format::kFractionBits);
      uint64_t& counter = counters[static_cast<size_t>(i % kLanes)][exponent];
      counter += exponent == kLast ? 1 : mantissa * mantissa;
    }
    for (auto& lane : counters) {
      for (size_t e = 0; e < kLast; ++e) {
        // Subnormal numbers have the weight of e = 1.
        const size_t weight = std::max<size_t>(e, 1) + Format::kBelowFp32;
        words_[2 * weight] += static_cast<int64_t>(lane[e] & ((uint64_t{1} << kLowBits) - 1));
        words_[2 * weight + 1] += static_cast<int64_t>(lane[e] >> kLowBits);
      }
      words_[2 * kExponents] += static_cast<int64_t>(lane[kLast]);
      lane.fill(0);
    }
  }
}

void SquareSum::add(const void* values, Element type, int64_t numel) {
  switch (type) {
    case Element::Fp32:
      return add_numbers<Fp32Format>(static_cast<const float*>(values), numel);
    case Element::Bf16:
      return add_numbers<Bf16Format>(static_cast<const Bf16*>(values), numel);
    case Element::Fp16:
      return add_numbers<Fp16Format>(static_cast<const Fp16*>(values), numel);
  }
}

double SquareSum::value() const {
  FixedPoint sum;
  for (int e = 1; e < kExponents; ++e) {
    const auto low = static_cast<unsigned __int128>(words_[static_cast<size_t>(2 * e)]);
    const auto high = static_cast<unsigned __int128>(words_[static_cast<size_t>(2 * e + 1)]);
    sum.add(low + (high << kLowBits), 2 * e);
  }
  return sum.rounded();
}

}  // namespace equigrad::kernels
