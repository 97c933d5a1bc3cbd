// SquareSum: the exact sum of squares of fp32, bf16 or fp16 numbers, which no order of additions
// can change.
//
// A finite fp32 number is m * 2^(e - 150) with an integer |m| < 2^24 and a biased exponent e in [1,
// 254]; its square is m^2 * 2^(2e - 300). So the squares are added as integers, one counter for
// each e, and rounded once at the end. Numbers in 16 bits are widened, which is exact.
//
// Invariants: value() does not depend on the order of add() or merge(), so neither on the partition
// nor on the number of ranks; it is the exact sum rounded once to the nearest double (ties to
// even). Zeros add nothing, so padding is harmless. A number that is not finite is only counted.
// Units: every `numel` counts elements; at most 2^38 elements in all.
// Errors: none.
// Depends on: kernels/element.hpp, the C++ standard library; the source on kernels/parallel.hpp.
#pragma once

#include <array>
#include <cstdint>

#include "engine/kernels/element.hpp"

namespace equigrad::kernels {

constexpr int kExponents = 255;  // biased exponents of finite fp32 numbers
constexpr int kWords =
    2 * kExponents + 1;  // low and high word of each counter, and the count of non-finite numbers

// The words may be added element-wise in any order (by an all-reduce of int64): counter e is
// words[2e] + words[2e + 1] * 2^40, and words[2 * kExponents] counts the numbers that are not
// finite. After add() a low word is below 2^40: those of 2^23 ranks can be added.
class SquareSum {
 public:
  void add(const void* values, Element type, int64_t numel);
  int64_t non_finite_numel() const { return words_[2 * kExponents]; }
  double value() const;

  int64_t* words() { return words_.data(); }
  const int64_t* words() const { return words_.data(); }

 private:
  std::array<int64_t, kWords> words_{};
};

// Adds into `words` [kWords] on the device; `stream` is a cudaStream_t.
void square_sum_cuda(const void* values, Element type, int64_t numel, int64_t* words, void* stream);

}  // namespace equigrad::kernels
