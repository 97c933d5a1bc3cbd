#include "engine/kernels/exact_sum.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/kernels/convert.hpp"
#include "engine/kernels/parallel.hpp"

namespace equigrad::kernels {
namespace {

// Of a double's bits. A bin has 32 exponents, those that agree in all but five bits.
constexpr uint64_t kMagnitude = 0x7FFF'FFFF'FFFF'FFFF;
constexpr uint64_t kExponent = 0x7FF0'0000'0000'0000;
constexpr uint64_t kBin = 0x7E00'0000'0000'0000;
constexpr uint64_t kHalf = 0x0008'0000'0000'0000;
constexpr uint64_t kTo52 = uint64_t{52} << 52;
constexpr double kBinRatio = 0x1p32;
constexpr uint64_t kBinStep = uint64_t{32} << 52;
constexpr uint32_t kMagnitude32 = 0x7FFF'FFFF, kInfinity32 = 0x7F80'0000;  // of a float's bits
// Of the bin above all others, whose lower bin holds the terms that are not finite.
constexpr double kNotFinite = 0x1.8p900;

constexpr int64_t kBlockNumel = 512;  // a block's sums stay in the first-level cache

struct Sum {
  double upper, lower;
};

[[gnu::always_inline]] inline double pick(bool first, double a, double b) { return first ? a : b; }

// c of a running sum; 0 of the sum of nothing.
[[gnu::always_inline]] inline double center_of_sum(double upper) {
  const auto bits = std::bit_cast<uint64_t>(upper);
  return std::bit_cast<double>(bits == 0 ? 0 : (bits & kExponent) | kHalf);
}

// The sum as it would be had its terms met a larger one, whose center is `center`, first.
[[gnu::always_inline]] inline Sum under(double center, Sum sum) {
  const double own = center_of_sum(sum.upper);
  const double upper = sum.upper - own;
  const double below = pick(center == own * kBinRatio, upper, 0.0);
  return {pick(center == own, upper, 0.0), pick(center == own, sum.lower, below)};
}

[[gnu::always_inline]] inline Sum with_term(Sum sum, float value) {
  const double given = value;
  const uint64_t magnitude = std::bit_cast<uint64_t>(given) & kMagnitude;
  const bool is_finite = magnitude < kExponent;
  const double term = pick(is_finite, given, 0.0);
  const auto of_term =
      std::bit_cast<double>(magnitude == 0 ? 0 : ((magnitude & kBin) + kTo52) | kHalf);
  const double of_sum = center_of_sum(sum.upper), least = pick(is_finite, of_term, kNotFinite);
  const double center = pick(least > of_sum, least, of_sum);
  const double center_below = center / kBinRatio;
  // Adding and taking away a center rounds to a multiple of its last place. A term has a share in
  // a bin only if it is of that bin or a larger one, as if it had come before all others.
  const double upper = pick(of_term == center, (term + center) - center, 0.0), rest = term - upper;
  const double below = (rest + center_below) - center_below;
  const double lower = pick(of_term >= center_below, below, 0.0);
  const Sum held = under(center, sum);
  return {center + (held.upper + upper), held.lower + pick(is_finite, lower, given)};
}

[[gnu::always_inline]] inline Sum merged(Sum a, Sum b) {
  const double of_a = center_of_sum(a.upper), of_b = center_of_sum(b.upper);
  const double center = pick(of_a > of_b, of_a, of_b);
  const Sum left = under(center, a), right = under(center, b);
  return {center + (left.upper + right.upper), left.lower + right.lower};
}

// upper + lower in one rounding: first to 53 bits, where an inexact result gets an odd last bit,
// which the rounding to 24 cannot take for a tie (Boldo and Melquiond, 2008).
[[gnu::always_inline]] inline float rounded_once(double upper, double lower) {
  const double total = upper + lower, part = total - upper;
  const double error = (upper - (total - part)) + (lower - part);
  const auto bits = std::bit_cast<int64_t>(total);
  const int64_t toward = (bits ^ std::bit_cast<int64_t>(error)) < 0 ? -1 : 1;
  const bool is_even = (bits & 1) == 0;
  const bool is_finite = (std::bit_cast<uint64_t>(total) & kExponent) != kExponent;
  const int64_t odd = bits + (is_even && is_finite && error != 0.0 ? toward : 0);
  return static_cast<float>(std::bit_cast<double>(odd));
}

[[gnu::always_inline]] inline float with_one_nan(float value) {
  return value == value ? value : std::numeric_limits<float>::quiet_NaN();
}

template <bool kIsFirst>
[[gnu::always_inline]] inline void add_values(const float* values, int64_t n, double* sums) {
  for (int64_t i = 0; i < n; ++i) {
    const Sum before = kIsFirst ? Sum{0.0, 0.0} : Sum{sums[2 * i], sums[2 * i + 1]};
    const Sum sum = with_term(before, values[i]);
    sums[2 * i] = sum.upper;
    sums[2 * i + 1] = sum.lower;
  }
}

// Rows that lie `stride` apart. All terms are at hand: the largest is found first, and how a term
// is shared out to two bins does not matter.
template <int kRows>
[[gnu::always_inline]] inline void sum_rows(const float* rows, int64_t stride, int64_t n,
                                            float* rounded) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t most = 0;
    for (int row = 0; row < kRows; ++row) {
      const uint32_t bits = std::bit_cast<uint32_t>(rows[row * stride + i]) & kMagnitude32;
      most = bits > most ? bits : most;
    }
    const auto bin =
        std::bit_cast<uint64_t>(static_cast<double>(std::bit_cast<float>(most))) & kBin;
    const auto center = std::bit_cast<double>((bin + kTo52) | kHalf);
    const auto last_place = std::bit_cast<double>(bin - kBinStep);
    const double center_below = center / kBinRatio;
    double upper = 0.0, lower = 0.0, plain = 0.0;
    for (int row = 0; row < kRows; ++row) {
      const double given = rows[row * stride + i];
      const double term = pick(std::fabs(given) >= last_place, given, 0.0);
      const double share = (term + center) - center;
      upper += share;
      lower += ((term - share) + center_below) - center_below;
      plain += given;
    }
    const float sum = rounded_once(upper, lower);
    const auto other = static_cast<float>(plain);  // not all finite
    rounded[i] = with_one_nan(most - 1 < kInfinity32 - 1 ? sum : most == 0 ? 0.0F : other);
  }
}

constexpr int kInRegisters = 4;  // rows
void sum_few(const float* rows, int64_t stride, int count, int64_t n, float* rounded,
             InstructionSet set) {
  run_on(
      set, [=]() __attribute__((always_inline)) {
        if (count == 1) sum_rows<1>(rows, stride, n, rounded);
        if (count == 2) sum_rows<2>(rows, stride, n, rounded);
        if (count == 3) sum_rows<3>(rows, stride, n, rounded);
        if (count == 4) sum_rows<4>(rows, stride, n, rounded);
      });
}

struct Rows {
  const char* data;
  Element type;
  int count;
  int64_t numel;  // of each
  const char* at(int row, int64_t element) const {
    return data + (row * numel + element) * element_bytes(type);
  }
};

// Elements [start, start + width) of every row.
void add_block(const Rows& rows, int64_t start, int64_t width, bool is_first, double* sums,
               InstructionSet set) {
  std::array<float, kBlockNumel> wide;
  for (int row = 0; row < rows.count; ++row) {
    const char* from = rows.at(row, start);
    const auto* values = static_cast<const float*>(static_cast<const void*>(from));
    if (rows.type != Element::Fp32) {
      widen(from, rows.type, width, wide.data(), set);
      values = wide.data();
    }
    if (is_first && row == 0)
      run_on(
          set, [=]() __attribute__((always_inline)) { add_values<true>(values, width, sums); });
    else
      run_on(
          set, [=]() __attribute__((always_inline)) { add_values<false>(values, width, sums); });
  }
}

// Of elements [begin, end); `rounded` is that of element 0.
void sum_part(const Rows& rows, int64_t begin, int64_t end, float* rounded, InstructionSet set) {
  std::array<float, kInRegisters * kBlockNumel> wide;
  std::array<double, 2 * kBlockNumel> sums;
  for (int64_t start = begin; start < end; start += kBlockNumel) {
    const int64_t width = std::min(kBlockNumel, end - start);
    if (rows.count > kInRegisters) {
      add_block(rows, start, width, true, sums.data(), set);
      exact_round(sums.data(), width, rounded + start, set);
      continue;
    }
    const bool is_wide = rows.type == Element::Fp32;
    for (int row = 0; row < rows.count && !is_wide; ++row)
      widen(rows.at(row, start), rows.type, width, wide.data() + row * kBlockNumel, set);
    const void* from = is_wide ? static_cast<const void*>(rows.at(0, start)) : wide.data();
    sum_few(static_cast<const float*>(from), is_wide ? rows.numel : kBlockNumel, rows.count, width,
            rounded + start, set);
  }
}

}  // namespace

void exact_add(const void* rows, Element type, int count, int64_t n, bool is_first, double* sums,
               InstructionSet set) {
  const Rows all{static_cast<const char*>(rows), type, count, n};
  parallel_for(n, [&](int64_t begin, int64_t end) {
    for (int64_t start = begin; start < end; start += kBlockNumel)
      add_block(all, start, std::min(kBlockNumel, end - start), is_first, sums + 2 * start, set);
  });
}

void exact_row_sum(const void* rows, Element type, int count, int64_t n, float* rounded,
                   InstructionSet set) {
  const Rows all{static_cast<const char*>(rows), type, count, n};
  parallel_for(n, [&](int64_t begin, int64_t end) { sum_part(all, begin, end, rounded, set); });
}

void exact_merge(const double* others, int64_t n, double* sums, InstructionSet set) {
  parallel_for(n, [=](int64_t begin, int64_t end) {
    run_on(
        set, [=]() __attribute__((always_inline)) {
          for (int64_t i = begin; i < end; ++i) {
            const Sum sum =
                merged({sums[2 * i], sums[2 * i + 1]}, {others[2 * i], others[2 * i + 1]});
            sums[2 * i] = sum.upper;
            sums[2 * i + 1] = sum.lower;
          }
        });
  });
}

void exact_round(const double* sums, int64_t n, float* rounded, InstructionSet set) {
  parallel_for(n, [=](int64_t begin, int64_t end) {
    run_on(
        set, [=]() __attribute__((always_inline)) {
          for (int64_t i = begin; i < end; ++i) {
            const double upper = sums[2 * i];
            rounded[i] = with_one_nan(rounded_once(upper - center_of_sum(upper), sums[2 * i + 1]));
          }
        });
  });
}

}  // namespace equigrad::kernels
