#include "conformance/oracle/unsplit_bound.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace equigrad::conformance::oracle {

double room_of(const at::Tensor& unsplit, const at::Tensor& reference) {
  if (unsplit.numel() != reference.numel())
    throw std::runtime_error("[oracle.room_of] expected " + std::to_string(reference.numel()) +
                             " elements, got " + std::to_string(unsplit.numel()) + ".");
  const auto errors =
      (unsplit.to(at::kDouble).flatten() - reference.to(at::kDouble).flatten()).abs();
  if (errors.numel() == 0) return 0;
  if (!errors.isfinite().all().item<bool>()) return kInfinity;
  const auto largest = errors.max().item<double>();
  if (largest == 0) return 0;
  const auto comparable = static_cast<double>(errors.ge(largest / 8).sum().item<int64_t>());
  return largest * std::max(kLeastFactor, std::pow(kChance, -1 / comparable));
}

// No bound at all is no comparison that holds: check() counts an infinite room as a violation.
BoundReport check_unsplit(const at::Tensor& engine, const at::Tensor& reference, double room,
                          const at::Tensor& absolute_sum, const Reduction& reduction) {
  constexpr double kPadding = 1 + 0x1p-40;  // of what is rounded here, in fp64
  const auto bound = reduction_bound(reduction);
  const double clip = std::fabs(reduction.clip_factor);
  const auto limits =
      (absolute_sum.to(at::kDouble).flatten() * bound.relative + room) * (clip * kPadding) +
      bound.absolute;
  return check(engine, reference.to(at::kDouble) * reduction.clip_factor, limits);
}

}  // namespace equigrad::conformance::oracle
