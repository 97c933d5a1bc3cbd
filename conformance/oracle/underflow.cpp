#include "conformance/oracle/underflow.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "conformance/oracle/bound.hpp"

namespace equigrad::conformance::oracle {
namespace {

double smallest_normal(at::ScalarType dtype) { return dtype == at::kHalf ? 0x1p-14 : 0x1p-126; }

// The largest number and half its unit in the last place: a tie goes to infinity, which is even.
double overflow_from(at::ScalarType dtype) {
  return dtype == at::kHalf ? 65520.0 : 0x1p128 * (1 - 0x1p-9);
}

}  // namespace

UnderflowLedger::UnderflowLedger(at::ScalarType dtype, double scale) : scale_(scale) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) {
    throw std::runtime_error("[oracle.underflow] expected fp16 or bf16.");
  }
  int exponent = 0;
  if (!(scale > 0) || std::frexp(scale, &exponent) != 0.5) {
    throw std::runtime_error("[oracle.underflow] expected a power of two as scale.");
  }
  zero_below_ = half_smallest(dtype);
  normal_from_ = smallest_normal(dtype) - half_smallest(dtype);
  overflow_from_ = oracle::overflow_from(dtype);
}

void UnderflowLedger::add(const at::Tensor& gradient) {
  const at::Tensor flat = gradient.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* values = flat.const_data_ptr<double>();
  numel_ += flat.numel();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const double size = std::fabs(values[i]);
    if (size == 0) continue;
    const double scaled = size * scale_;
    if (!(scaled < overflow_from_)) {
      ++overflow_;
    } else if (scaled <= zero_below_) {
      ++zero_;
    } else if (scaled < normal_from_) {
      ++subnormal_;
    }
    least_ = std::min(least_, size);
    most_ = std::isnan(size) ? std::numeric_limits<double>::infinity() : std::max(most_, size);
  }
}

std::optional<double> UnderflowLedger::smallest_lossless_scale() const {
  if (most_ == 0) return 1;
  if (!std::isfinite(most_)) return std::nullopt;
  int exponent = 0;
  std::frexp(normal_from_ / least_, &exponent);
  double scale = std::ldexp(1.0, exponent - 2);  // at most two steps too small
  while (least_ * scale < normal_from_) scale *= 2;
  if (most_ * scale < overflow_from_) return scale;
  return std::nullopt;
}

}  // namespace equigrad::conformance::oracle
