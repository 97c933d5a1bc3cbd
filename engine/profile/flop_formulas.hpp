// Flop formulas: what one operator costs, from its name and the shapes of its inputs.
//
// Invariants: exact for products of matrices, attention and convolutions, where one
// multiply-accumulate is two floating-point operations and a bias is one for every output; for the
// rest an estimate with DeepSpeed's numbers: one for every element of an element-wise operator, an
// activation, a softmax or a reduction, 5 for a normalization with weights (4 without), none for
// what moves or indexes data. Operators on integers cost nothing. Masked attention counts in full.
// The backward of attention counts the recomputation that it does.
// Units: floating-point operations, multiply-accumulates.
// Errors: none; an operator without a formula gives nothing.
// Depends on: ATen's IValue.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>

namespace equigrad::profile {

struct Cost {
  int64_t flops = 0;
  int64_t macs = 0;

  bool operator==(const Cost&) const = default;
};

// `name` as in "aten::mm"; the form in place costs the same.
std::optional<Cost> cost_of(const std::string& name, c10::ArrayRef<c10::IValue> inputs);

}  // namespace equigrad::profile
