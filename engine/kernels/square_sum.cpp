#include "engine/kernels/square_sum.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <type_traits>

#include "engine/kernels/convert.hpp"
#include "engine/kernels/parallel.hpp"

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

// Numbers of any kind, one by one: a counter for each exponent.
template <class Format>
class OneByOne {
 public:
  explicit OneByOne(int64_t* words) : words_(words) {}
  ~OneByOne() { flush(); }

  void add(const typename Format::Number* values, int64_t numel) {
    if (added_numel_ + numel > kFlushNumel) flush();
    added_numel_ += numel;
    constexpr uint32_t kHidden = 1U << Format::kFractionBits;
    for (int64_t i = 0; i < numel; ++i) {
      const uint32_t bits = bits_of(values[i]);
      const uint32_t exponent = (bits >> Format::kFractionBits) & kLast;
      const uint32_t fraction = (bits & (kHidden - 1)) | (exponent != 0 ? kHidden : 0U);
      const uint64_t mantissa = fraction << (23 - Format::kFractionBits);
      uint64_t& counter = counters_[static_cast<size_t>(i % kLanes)][exponent];
      counter += exponent == kLast ? 1 : mantissa * mantissa;
    }
  }

 private:
  static constexpr uint32_t kLast = Format::kLastExponent;

  void flush() {
    if (added_numel_ == 0) return;
    for (auto& lane : counters_) {
      for (size_t e = 0; e < kLast; ++e) {
        // Subnormal numbers have the weight of e = 1.
        const size_t weight = std::max<size_t>(e, 1) + Format::kBelowFp32;
        words_[2 * weight] += static_cast<int64_t>(lane[e] & ((uint64_t{1} << kLowBits) - 1));
        words_[2 * weight + 1] += static_cast<int64_t>(lane[e] >> kLowBits);
      }
      words_[2 * kExponents] += static_cast<int64_t>(lane[kLast]);
      lane.fill(0);
    }
    added_numel_ = 0;
  }

  int64_t* words_;
  std::array<std::array<uint64_t, kLast + 1>, kLanes> counters_{};
  int64_t added_numel_ = 0;
};

// Blocks of numbers in vectors, where they are not too far apart. With E the largest exponent of a
// block every square, exact in a double, is below T = 2^(2 E - 252). It is cut on two grids:
//
//   T 2^-42 and T 2^-84    (s + a) - a is s rounded to the grid, where a is a multiple of it from
//                          2^52 to 2^53 times as large: 1.5 * 2^52 grid and the parts so far
//
// Both parts, and sums of a block's parts, are exact; what lies below the second grid must be zero,
// or the block is left to OneByOne. (Demmel, Nguyen: Fast reproducible floating-point summation.)
class InBlocks {
 public:
  static constexpr int64_t kNumel = 512;

  InBlocks(int64_t* words, InstructionSet set) : words_(words), set_(set) {}
  ~InBlocks() { flush(); }

  // kNumel numbers; false: nothing was added.
  bool add(const float* values) {
    uint32_t largest = 0;
    run_on(
        set_, [&largest, values ]() __attribute__((always_inline)) {
          uint32_t most = 0;
          for (int64_t i = 0; i < kNumel; ++i)
            most = std::max(most, bits_of(values[i]) & 0x7FFFFFFFU);
          largest = most;
        });
    if (largest == 0) return true;
    const int exponent = static_cast<int>(largest >> 23);
    if (exponent < kLeast || exponent > kMost) return false;
    const int grid = 2 * exponent - 252 - 42;
    const double far = std::ldexp(1.5, 52 + grid), near = std::ldexp(1.5, 52 + grid - 42);
    Parts parts;
    run_on(
        set_, [&parts, values, far, near ]()
                  __attribute__((always_inline)) { cut(values, far, near, parts); });
    double upper = 0, lower = 0;
    uint64_t rest = 0;
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      upper += parts.upper[lane] - far;
      lower += parts.lower[lane] - near;
      rest |= parts.rest[lane];
    }
    if (rest != 0) return false;
    auto& total = totals_[static_cast<size_t>(exponent)];
    total += (static_cast<__int128>(std::ldexp(upper, -grid)) << 42) +
             static_cast<__int128>(std::ldexp(lower, 42 - grid));
    return true;
  }

 private:
  // Below kLeast the second grid, above kMost the highest counter, would not exist.
  static constexpr int kLeast = 19, kMost = 212;
  static constexpr int64_t kWidth = 16;
  struct Parts {
    alignas(64) double upper[kWidth], lower[kWidth];
    alignas(64) uint64_t rest[kWidth] = {};  // bits of numbers, all 0
  };

  [[gnu::always_inline]] static inline void cut(const float* values, double far, double near,
                                                Parts& parts) {
    Parts mine;
    std::fill_n(mine.upper, kWidth, far);
    std::fill_n(mine.lower, kWidth, near);
    for (int64_t i = 0; i < kNumel; i += kWidth) {
      for (int64_t lane = 0; lane < kWidth; ++lane) {
        const auto value = static_cast<double>(values[i + lane]);
        const double square = value * value;
        const double upper = mine.upper[lane] + square;
        const double below = square - (upper - mine.upper[lane]);
        const double lower = mine.lower[lane] + below;
        const double rest = below - (lower - mine.lower[lane]);
        mine.upper[lane] = upper;
        mine.lower[lane] = lower;
        mine.rest[lane] |= std::bit_cast<uint64_t>(rest);
      }
    }
    parts = mine;
  }

  // A total's bit 0 is worth 2^(2 (E - 18) - 300).
  void flush() {
    for (int exponent = kLeast; exponent <= kMost; ++exponent) {
      auto total = static_cast<unsigned __int128>(totals_[static_cast<size_t>(exponent)]);
      for (int e = exponent - 18; total != 0; e += kLowBits / 2, total >>= kLowBits)
        words_[2 * e] += static_cast<int64_t>(total & ((uint64_t{1} << kLowBits) - 1));
    }
  }

  int64_t* words_;
  InstructionSet set_;
  std::array<__int128, 256> totals_{};
};

// A block's numbers: where they are, or widened, or padded with zeros, in `memory`.
template <class Number, std::size_t kNumel>
const float* in_fp32(const Number* values, int64_t numel, std::array<float, kNumel>& memory) {
  if constexpr (std::is_same_v<Number, float>)
    if (numel == static_cast<int64_t>(kNumel)) return values;
  std::transform(values, values + numel, memory.begin(), [](Number one) { return widened(one); });
  std::fill(memory.begin() + numel, memory.end(), 0.0F);
  return memory.data();
}

template <class Format>
void add_numbers(const void* numbers, int64_t begin, int64_t end, int64_t* words) {
  constexpr int64_t kNumel = InBlocks::kNumel;
  const auto* values = static_cast<const typename Format::Number*>(numbers) + begin;
  const int64_t numel = end - begin;
  OneByOne<Format> one_by_one(words);
  InBlocks in_blocks(words, instruction_set());
  alignas(64) std::array<float, kNumel> memory;
  for (int64_t start = 0; start < numel; start += kNumel) {
    const int64_t width = std::min(kNumel, numel - start);
    const float* block = in_fp32(values + start, width, memory);
    if (!in_blocks.add(block)) one_by_one.add(values + start, width);
  }
}

void add_typed(const void* values, Element type, int64_t begin, int64_t end, int64_t* words) {
  switch (type) {
    case Element::Fp32:
      return add_numbers<Fp32Format>(values, begin, end, words);
    case Element::Bf16:
      return add_numbers<Bf16Format>(values, begin, end, words);
    case Element::Fp16:
      return add_numbers<Fp16Format>(values, begin, end, words);
  }
}

}  // namespace

void SquareSum::add(const void* values, Element type, int64_t numel) {
  std::mutex adding;
  parallel_for(numel, [&](int64_t begin, int64_t end) {
    if (end - begin == numel) return add_typed(values, type, begin, end, words());
    SquareSum part;
    add_typed(values, type, begin, end, part.words());
    const std::lock_guard lock(adding);
    for (size_t i = 0; i < kWords; ++i) words_[i] += part.words_[i];
  });
  for (size_t e = 1; e < kExponents; ++e) {
    words_[2 * e + 1] += words_[2 * e] >> kLowBits;
    words_[2 * e] &= (int64_t{1} << kLowBits) - 1;
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
