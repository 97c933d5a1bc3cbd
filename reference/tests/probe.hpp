// Probe: one parameter whose gradient is what a test wants it to be, and rounding by hand.
//
//   Probe    loss_of(x) = sum of weight x in fp32 (fp64 for fp64 weights), so weight's gradient is
//            x rounded to weight's dtype
//   rounded  a float to the nearest one with so many bits, ties to even, by frexp and nearbyint
//
// Invariants: weights are uneven, none is exact in 16 bits.
// Shapes: weight [numel].   Errors: none.
// Depends on: reference/models/model.hpp, ATen.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "reference/models/model.hpp"

namespace equigrad::conformance {

class Probe : public reference::Model {
 public:
  explicit Probe(int64_t numel)
      : weight(register_parameter("weight", at::arange(1, numel + 1, at::kFloat) / 7)) {}

  at::Tensor loss_of(const at::Tensor& x) {
    const bool wide = weight.scalar_type() == at::kDouble;
    return (weight.to(wide ? at::kDouble : at::kFloat) * x).sum();
  }
  at::Tensor output(const reference::Batch& batch) override { return weight * batch.input; }
  at::Tensor criterion(const at::Tensor& output, const reference::Batch&) override {
    return output.sum();
  }

  at::Tensor weight;
};

inline float rounded(float x, at::ScalarType dtype) {
  if (dtype == at::kFloat || x == 0 || !std::isfinite(x)) return x;
  const int bits = dtype == at::kHalf ? 11 : 8, lowest = dtype == at::kHalf ? -14 : -126;
  int exponent = 0;  // x = m 2^exponent, 1/2 <= |m| < 1
  std::frexp(x, &exponent);
  const int unit = std::max(exponent - 1, lowest) - (bits - 1);
  const double value = std::ldexp(std::nearbyint(std::ldexp(double{x}, -unit)), unit);
  if (dtype == at::kHalf && std::fabs(value) > 65504) {
    return std::copysign(std::numeric_limits<float>::infinity(), x);
  }
  return static_cast<float>(value);
}

}  // namespace equigrad::conformance
