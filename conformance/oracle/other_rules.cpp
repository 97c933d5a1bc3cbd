#include "conformance/oracle/other_rules.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace equigrad::conformance::oracle {
namespace {

constexpr double kFrobenius = 0.083, kCalcDiff = 1e-3, kLoss = 0.01;

struct Tolerance {
  double relative, absolute;
};

Tolerance tolerance_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return {1e-3, 1e-5};
    case at::kBFloat16:
      return {1.6e-2, 1e-5};
    case at::kDouble:
      return {1e-7, 1e-7};
    default:
      return {1.3e-6, 1e-5};
  }
}

// Not "<=": what compares with NaN is not held.
bool exceeds(double value, double limit) { return !(value <= limit); }

at::Tensor wide(const at::Tensor& tensor) { return tensor.detach().flatten().to(at::kDouble); }

double total(const at::Tensor& tensor) { return tensor.sum().item<double>(); }

}  // namespace

double relative_frobenius(const at::Tensor& got, const at::Tensor& want) {
  const auto reference = wide(want);
  const double error = std::sqrt(total((wide(got) - reference).square()));
  return error == 0 ? 0 : error / std::sqrt(total(reference.square()));
}

double calc_diff(const at::Tensor& got, const at::Tensor& want) {
  const auto x = wide(got), y = wide(want);
  const double squares = total(x * x + y * y);
  return squares == 0 ? 0 : 1 - 2 * total(x * y) / squares;
}

bool holds_by_torch_defaults(const at::Tensor& got, const at::Tensor& want) {
  const auto of_got = tolerance_of(got.scalar_type()), of_want = tolerance_of(want.scalar_type());
  const auto reference = wide(want);
  const auto allowed = std::max(of_got.absolute, of_want.absolute) +
                       std::max(of_got.relative, of_want.relative) * reference.abs();
  const auto error = (wide(got) - reference).abs();
  const auto held = at::logical_and(error.le(allowed), error.isfinite());
  return at::logical_or(held, wide(got).eq(reference)).all().item<bool>();  // infinities too
}

void OtherRules::see_tensor(const at::Tensor& got, const at::Tensor& want) {
  if (got.sizes() != want.sizes()) raised_ = {true, true, true, raised_[3]};
  if (got.sizes() != want.sizes() || got.numel() == 0) return;
  raised_[0] = raised_[0] || exceeds(relative_frobenius(got, want), kFrobenius);
  raised_[1] = raised_[1] || exceeds(oracle::calc_diff(got, want), kCalcDiff);
  raised_[2] = raised_[2] || !oracle::holds_by_torch_defaults(got, want);
}

void OtherRules::see_loss(double got, double want) {
  const bool same = got == want || (std::isnan(got) && std::isnan(want));
  raised_[3] = raised_[3] || (!same && exceeds(std::fabs(got - want) / std::fabs(want), kLoss));
}

}  // namespace equigrad::conformance::oracle
