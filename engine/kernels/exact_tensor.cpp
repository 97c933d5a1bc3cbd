#include "engine/kernels/exact_tensor.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include "engine/error.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/kernels/exact_sum.hpp"

namespace equigrad::kernels {
namespace {

const char* const kWhere = "kernels.exact_sum";

double* halves(const at::Tensor& sums) { return static_cast<double*>(sums.mutable_data_ptr()); }
const double* const_halves(const at::Tensor& sums) {
  return static_cast<const double*>(sums.const_data_ptr());
}

void check(const at::Tensor& tensor) {
  if (!tensor.is_cpu())
    throw Error(kWhere, "expected tensors on the CPU, got one on " + tensor.device().str() +
                            ". Use \"reduction\": \"pinned\" there.");
}

}  // namespace

void exact_add_(const at::Tensor& sums, const at::Tensor& terms, bool is_first) {
  check(sums);
  if (terms.scalar_type() == kExactSum) {
    if (is_first)
      sums.copy_(terms);
    else
      exact_merge(const_halves(terms), sums.numel(), halves(sums));
    return;
  }
  exact_add(terms.const_data_ptr(), element_of(terms.scalar_type(), kWhere), 1, terms.numel(),
            is_first, halves(sums));
}

at::Tensor exact_of(const at::Tensor& terms) {
  const auto sums = at::empty(terms.sizes(), terms.options().dtype(kExactSum));
  exact_add_(sums, terms.contiguous(), /*is_first=*/true);
  return sums;
}

at::Tensor exact_rounded(const at::Tensor& sums) {
  check(sums);
  const auto all = sums.contiguous();
  const auto rounded = at::empty(sums.sizes(), sums.options().dtype(at::kFloat));
  exact_round(const_halves(all), all.numel(), rounded.mutable_data_ptr<float>());
  return rounded;
}

at::Tensor exact_row_sum(const at::Tensor& rows, at::ScalarType dtype) {
  check(rows);
  const int64_t numel = rows.size(1);
  if (rows.scalar_type() == kExactSum || dtype == kExactSum) {
    const auto sums = at::empty({numel}, rows.options().dtype(kExactSum));
    if (rows.scalar_type() == kExactSum) {
      for (int64_t row = 0; row < rows.size(0); ++row) exact_add_(sums, rows[row], row == 0);
    } else {
      exact_add(rows.const_data_ptr(), element_of(rows.scalar_type(), kWhere),
                static_cast<int>(rows.size(0)), numel, /*is_first=*/true, halves(sums));
    }
    return dtype == kExactSum ? sums : exact_rounded(sums).to(dtype);
  }
  const auto rounded = at::empty({numel}, rows.options().dtype(at::kFloat));
  exact_row_sum(rows.const_data_ptr(), element_of(rows.scalar_type(), kWhere),
                static_cast<int>(rows.size(0)), numel, rounded.mutable_data_ptr<float>());
  return rounded.to(dtype);
}

at::Tensor as_sent(const at::Tensor& tensor) {
  if (tensor.scalar_type() != kExactSum) return tensor;
  return at::view_as_real(tensor).flatten(tensor.dim() - 1);
}

}  // namespace equigrad::kernels
