#include "conformance/oracle/bound.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace equigrad::conformance::oracle {
namespace {

at::Tensor as_double(const at::Tensor& tensor) {
  if (!tensor.defined()) throw std::runtime_error("[oracle.bound] expected a tensor, got none.");
  return tensor.detach().to(at::kCPU, at::kDouble).flatten().contiguous();
}

void require_numel(const at::Tensor& tensor, int64_t numel, const char* what) {
  if (tensor.numel() == numel) return;
  throw std::runtime_error(std::string("[oracle.bound] expected ") + std::to_string(numel) +
                           " elements of " + what + ", got " + std::to_string(tensor.numel()) +
                           ".");
}

// bound_i of the reduction: what it may add to element i, with the rounding of the inputs of the
// comparison themselves: `plain` was stored in its dtype, and `absolute_sum` was added up in fp64.
at::Tensor reduction_bounds(const at::Tensor& plain, const at::Tensor& absolute_sum,
                            const Reduction& reduction) {
  const ReductionBound bound = reduction_bound(reduction);
  const int64_t passes = reduction.passes > 0 ? reduction.passes : reduction.accumulation_steps;
  const double factor = std::fabs(reduction.clip_factor);
  const double noise = gamma(reduction.world * passes + 4, kDoubleUnit);
  const at::Tensor sums = as_double(absolute_sum);
  require_numel(sums, plain.numel(), "the absolute sum");
  at::Tensor limits = sums * (factor * (bound.relative + noise) * (1 + noise)) + bound.absolute;
  // A plain run in fp64 holds its average unrounded; rounding to fp32 costs one rounding of it.
  if (plain.scalar_type() != at::kDouble) {
    limits += as_double(plain).abs() * (factor * unit_roundoff(plain.scalar_type())) +
              factor * half_smallest(plain.scalar_type());
  }
  return limits;
}

}  // namespace

double unit_roundoff(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return kDoubleUnit;
    case at::kFloat:
      return 0x1p-24;
    case at::kHalf:
      return 0x1p-11;
    case at::kBFloat16:
      return 0x1p-8;
    default:
      throw std::runtime_error("[oracle.bound] expected a float dtype.");
  }
}

double half_smallest(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return 0x1p-150;
    case at::kBFloat16:
      return 0x1p-134;
    case at::kHalf:
      return 0x1p-25;
    case at::kDouble:
      return 0;  // 2^-1075: below every double
    default:
      throw std::runtime_error("[oracle.bound] expected a float dtype.");
  }
}

double gamma(int64_t n, double u) {
  const double nu = static_cast<double>(n) * u;
  if (n < 0 || !(nu < 1)) throw std::runtime_error("[oracle.gamma] expected 0 <= n u < 1.");
  return nu / (1 - nu) * (1 + 4 * kDoubleUnit);
}

double roundings(int64_t n, double u) {
  if (n < 0) throw std::runtime_error("[oracle.roundings] expected n >= 0.");
  // expm1 and log1p are good to a few units of fp64; 16 of them cover both and the product.
  return std::expm1(static_cast<double>(n) * std::log1p(u)) * (1 + 16 * kDoubleUnit);
}

void see(BoundReport& report, int64_t index, double got, double exact, double bound) {
  ++report.compared;
  const double error = std::fabs(got - exact);
  double margin = 0;
  if (!std::isfinite(got) || !std::isfinite(exact) || !std::isfinite(bound)) {
    if (!std::isfinite(got) || !std::isfinite(exact)) ++report.not_finite;
    margin = kInfinity;
  } else if (error > 0) {
    margin = bound > 0 ? error / bound : kInfinity;
  }
  // Not by margin > 1: a quotient may round down to 1.
  if (margin == kInfinity || error > bound) ++report.violations;
  if (margin <= report.margin) return;
  report.margin = margin;
  report.worst_index = index;
  report.worst_got = got;
  report.worst_want = exact;
  report.worst_bound = bound;
}

BoundReport check(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& bound) {
  const at::Tensor a = as_double(got), b = as_double(exact), limit = as_double(bound);
  require_numel(b, a.numel(), "the exact result");
  require_numel(limit, a.numel(), "the bound");
  const auto* x = a.const_data_ptr<double>();
  const auto* y = b.const_data_ptr<double>();
  const auto* z = limit.const_data_ptr<double>();
  BoundReport report;
  for (int64_t i = 0; i < a.numel(); ++i) see(report, i, x[i], y[i], z[i]);
  return report;
}

void merge(BoundReport& into, const BoundReport& more) {
  into.compared += more.compared;
  into.violations += more.violations;
  into.not_finite += more.not_finite;
  if (more.margin <= into.margin) return;
  into.margin = more.margin;
  into.worst_index = more.worst_index;
  into.worst_got = more.worst_got;
  into.worst_want = more.worst_want;
  into.worst_bound = more.worst_bound;
}

std::string describe(const BoundReport& report) {
  std::ostringstream text;
  if (report.compared == 0) return "nothing was compared";
  text.precision(9);
  text << report.violations << " of " << report.compared << " elements beyond the bound";
  if (report.not_finite > 0) text << " (" << report.not_finite << " not finite)";
  text << ", margin " << report.margin;
  if (report.worst_index >= 0) {
    text << " at [flat " << report.worst_index << "] got " << report.worst_got << " want "
         << report.worst_want << " bound " << report.worst_bound;
  }
  return text.str();
}

BoundReport check_reduction(const at::Tensor& engine, const at::Tensor& plain,
                            const at::Tensor& absolute_sum, const Reduction& reduction) {
  return check(engine, as_double(plain) * reduction.clip_factor,
               reduction_bounds(plain, absolute_sum, reduction));
}

BoundReport check_gradient(const at::Tensor& engine, const at::Tensor& plain,
                           const at::Tensor& reference, const at::Tensor& absolute_sum,
                           const Reduction& reduction) {
  require_numel(reference, plain.numel(), "the reference");
  const at::Tensor truth = as_double(reference);
  const at::Tensor own = (as_double(plain) - truth).abs() * std::fabs(reduction.clip_factor);
  const at::Tensor allowed = own * (1 + 4 * kDoubleUnit);
  const at::Tensor added = reduction_bounds(plain, absolute_sum, reduction);
  // |engine - truth| <= |plain - truth| + |engine - plain|
  auto report = check(engine, truth * reduction.clip_factor, allowed + added);
  // How much of what distribution may add it did add; precision's own part is no one's margin.
  const at::Tensor error = (as_double(engine) - truth * reduction.clip_factor).abs();
  report.margin = check((error - allowed).clamp_min(0), at::zeros_like(error), added).margin;
  return report;
}

}  // namespace equigrad::conformance::oracle
