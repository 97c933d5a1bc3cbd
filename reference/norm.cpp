#include "reference/norm.hpp"

#include <cmath>
#include <utility>

namespace equigrad::reference {

void ExactSum::add(double term) {
  if (!std::isfinite(term)) {
    not_finite_ += term;
    return;
  }
  // Carry the term through the parts from small to large: term + part = sum + error exactly
  // (FAST-TWO-SUM needs the larger first). The errors are the new small parts.
  size_t kept = 0;
  for (double part : parts_) {
    if (std::fabs(term) < std::fabs(part)) std::swap(term, part);
    const double sum = term + part;
    const double error = part - (sum - term);
    if (error != 0) parts_[kept++] = error;
    term = sum;
  }
  parts_.resize(kept);
  if (term != 0) parts_.push_back(term);
}

void ExactSum::add_square(double x) {
  const double square = x * x;
  add(square);
  const double error = std::fma(x, x, -square);  // exact, and 0 when x was a float
  if (std::isfinite(square) && error != 0) add(error);
}

double ExactSum::value() const {
  if (not_finite_ != 0) return not_finite_;  // NaN too: it differs from 0
  if (parts_.empty()) return 0;
  // Add from the largest down until something is lost.
  size_t i = parts_.size() - 1;
  double sum = parts_[i];
  double error = 0;
  while (i > 0 && error == 0) {
    const double term = parts_[--i];
    const double before = sum;
    sum = before + term;
    error = term - (sum - before);
  }
  // The rounding was to even if the loss is exactly half a unit; what lies below it then decides.
  if (i > 0 && error != 0 && (error < 0) == (parts_[i - 1] < 0)) {
    const double twice = error * 2;
    const double up = sum + twice;
    if (up - sum == twice) sum = up;
  }
  return sum;
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / (norm + 1e-6) : 1.0;
}

}  // namespace equigrad::reference
