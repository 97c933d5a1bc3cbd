// Bits: whether two tensors hold the same bits, and if not, how far apart they are.
//
// Invariants: +0 and -0 are the same value; everything else is compared as an integer, so a NaN
//   equals only a NaN of the same bits. A different dtype or shape is a finding, not an error.
// Shapes: both tensors must have the same sizes; compare `x.flatten()` where only the order of
//   elements is meant. Units: ulp = representable values of the dtype between got and want.
// Errors: std::runtime_error for a dtype that is not compared (complex, quantized) or a device
//   other than the CPU.
// Depends on: ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace equigrad::conformance::oracle {

struct BitsReport {
  std::string mismatch;      // "dtype ..." or "shape ..." when the two are not comparable
  int64_t compared = 0;      // elements looked at
  int64_t differing = 0;     // elements that differ
  int64_t not_finite = 0;    // of those: got or want is NaN or infinite
  int64_t worst_index = -1;  // flat; not finite first, then the largest distance; -1: none
  double worst_got = 0;
  double worst_want = 0;
  double worst_ulp = 0;  // infinity when a NaN is involved

  // An empty shard is equal to an empty shard; whoever owns the lane checks that it compared > 0.
  bool equal() const { return mismatch.empty() && differing == 0; }
};

BitsReport compare(const at::Tensor& got, const at::Tensor& want);

// Adds the counts of `more` and keeps the worse of the two worst elements. The index of the worst
// element is only meaningful together with its tensor, which the caller knows.
void merge(BitsReport& into, const BitsReport& more);

// One line: "equal (12 elements)" or "3 of 12 elements differ, worst [flat 4] got .. want .. (2
// ulp)".
std::string describe(const BitsReport& report);

// Representable values of `dtype` between a and b; infinity when either is NaN.
double ulp_distance(double a, double b, at::ScalarType dtype);

// The gap between |value| and the next larger number of `dtype` (of the largest, when infinite).
double ulp_of(double value, at::ScalarType dtype);

}  // namespace equigrad::conformance::oracle
