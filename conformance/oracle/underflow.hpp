// Underflow: what a loss scale loses when a gradient is rounded to 16 bits.
//
//   |g| S     0 ........ half the smallest ........ smallest normal ........ largest ........
//             becomes zero           becomes subnormal        kept           overflows
//
// Invariants: an element that is zero is never lost; rounding is to nearest even, so the borders
//   are half an ulp below the smallest normal number and half an ulp above the largest.
// Shapes: any; the gradient in fp32 or fp64, before the scale.
// Units: elements; scales are powers of two.
// Errors: std::runtime_error for a dtype of other than 16 bits, or a scale that is no power of two.
// Depends on: bound.hpp, ATen. The reason for a scale: Micikevicius et al., Mixed Precision
// Training (ICLR 2018), section 3.2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace equigrad::conformance::oracle {

class UnderflowLedger {
 public:
  UnderflowLedger(at::ScalarType dtype, double scale);

  void add(const at::Tensor& gradient);

  int64_t numel() const { return numel_; }
  int64_t zero() const { return zero_; }
  int64_t subnormal() const { return subnormal_; }
  int64_t overflow() const { return overflow_; }  // those that are not finite anyway among them
  double scale() const { return scale_; }
  // The smallest power of two that loses none of them; 1 if all are zero, nothing if their range is
  // wider than the dtype's.
  std::optional<double> smallest_lossless_scale() const;

 private:
  double scale_;
  double zero_below_;  // up to here, inclusive
  double normal_from_;
  double overflow_from_;
  int64_t numel_ = 0, zero_ = 0, subnormal_ = 0, overflow_ = 0;
  double least_ = std::numeric_limits<double>::infinity();  // of |g| that is not zero
  double most_ = 0;
};

}  // namespace equigrad::conformance::oracle
