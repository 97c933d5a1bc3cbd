// exact_tensor: the sums of kernels/exact_sum.hpp as tensors.
//
// Invariants: a tensor of running sums has dtype kExactSum, whose two halves are a sum's two
// doubles; zeros are sums of nothing. Copies and views are those of any tensor; arithmetic on one
// has no meaning.
// Shapes: as the terms. Terms are fp32, bf16, fp16 or running sums; rows [rows, n] are contiguous.
// Errors: equigrad::Error for tensors that are not on the CPU, and those of element_of.
// Depends on: kernels/exact_sum, kernels/element_of, ATen.
#pragma once

#include <ATen/core/Tensor.h>

namespace equigrad::kernels {

inline constexpr at::ScalarType kExactSum = at::kComplexDouble;

// sums += terms, both [n] and contiguous; or sums = terms.
void exact_add_(const at::Tensor& sums, const at::Tensor& terms, bool is_first = false);
// What the terms sum to, one by one.
at::Tensor exact_of(const at::Tensor& terms);
// In fp32.
at::Tensor exact_rounded(const at::Tensor& sums);
// Of the rows: running sums if `dtype` is kExactSum, else rounded to fp32 and then to `dtype`.
// [rows, n] -> [n]
at::Tensor exact_row_sum(const at::Tensor& rows, at::ScalarType dtype);
// The same memory as a backend knows it: sums as pairs of doubles.   [..., n] -> [..., 2 n]
at::Tensor as_sent(const at::Tensor& tensor);

}  // namespace equigrad::kernels
