// Norm: the length of the whole gradient, and clipping by it.
//
// ExactSum keeps a sum as a list of doubles that do not overlap (Shewchuk 1997, "Adaptive
// Precision Floating-Point Arithmetic and Fast Robust Geometric Predicates", GROW-EXPANSION), so
// nothing is ever rounded away; value() rounds the true sum once, to nearest even.
//
// Invariants: value() does not depend on the order of the terms. norm = sqrt(the exact sum of all
//   squares, rounded once).
// Errors: none; an infinite or NaN term makes value() infinite or NaN.
// Depends on: the C++ standard library only. Compile with -ffp-contract=off.
#pragma once

#include <cstdint>
#include <vector>

namespace equigrad::reference {

class ExactSum {
 public:
  void add(double term);
  // x * x without rounding: one term for a float, two for a double.
  void add_square(double x);
  double value() const;

 private:
  std::vector<double> parts_;  // by increasing magnitude, non-overlapping, none zero
  double not_finite_ = 0;      // the sum of the infinite and NaN terms
};

// The factor for gradients of this norm: max_norm / (norm + 1e-6) when norm > max_norm; otherwise
// (or when max_norm is 0: clipping off) exactly 1, and then gradients are left alone.
double clip_factor(double norm, double max_norm);

}  // namespace equigrad::reference
