// Data types: what the configuration calls a type, as ATen does; and the types in which a
// parameter's gradients and weights are sent.
//
// Invariants: weights are sent in the parameters' type, those of lower precision (autocast's safe
// modules) in autocast's; gradients likewise, unless communication_data_type says otherwise.
// Errors: none.
// Depends on: config/precision.hpp, ATen's scalar types.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <optional>

#include "engine/config/precision.hpp"

namespace equigrad {

inline at::ScalarType torch_dtype(DataType dtype) {
  switch (dtype) {
    case DataType::Bf16:
      return at::kBFloat16;
    case DataType::Fp16:
      return at::kHalf;
    case DataType::Fp32:
      break;
  }
  return at::kFloat;
}

// [0] of most parameters, [1] of those of lower precision; nothing: the type they have anyway.
using CommunicationDtypes = std::array<std::optional<at::ScalarType>, 2>;

inline CommunicationDtypes weight_communication_dtypes(const PrecisionConfig& precision) {
  if (!precision.autocast.enabled) return {};
  return {std::nullopt, torch_dtype(precision.autocast.dtype)};
}

inline CommunicationDtypes gradient_communication_dtypes(const PrecisionConfig& precision) {
  if (precision.communication) {
    const auto all = torch_dtype(*precision.communication);
    return {all, all};
  }
  return weight_communication_dtypes(precision);
}

}  // namespace equigrad
