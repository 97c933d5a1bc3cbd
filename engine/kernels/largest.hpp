// Largest: the largest absolute value of fp32, bf16 or fp16 numbers, the infinity norm of a vector.
//
// Invariants: value() is one of the numbers, exactly, whatever the order of add() and of merging;
// 0 if there is none. A number that is not finite is only counted, as in kernels/square_sum.hpp.
// Units: every `numel` counts elements.
// Errors: none.
// Depends on: kernels/element.hpp, the C++ standard library; the source on kernels/parallel.hpp.
#pragma once

#include <array>
#include <cstdint>

#include "engine/kernels/element.hpp"

namespace equigrad::kernels {

// Of several parts: words[0], the bits of the largest number in fp32, by maximum; words[1], the
// count of numbers that are not finite, by sum.
constexpr int kLargestWords = 2;

class Largest {
 public:
  void add(const void* values, Element type, int64_t numel);
  int64_t non_finite_numel() const { return words_[1]; }
  double value() const;

  int64_t* words() { return words_.data(); }
  const int64_t* words() const { return words_.data(); }

 private:
  std::array<int64_t, kLargestWords> words_{};
};

// Adds into `words` [kLargestWords] on the device; `stream` is a cudaStream_t.
void largest_cuda(const void* values, Element type, int64_t numel, int64_t* words, void* stream);

}  // namespace equigrad::kernels
