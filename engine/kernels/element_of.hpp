// element_of: the kernels' name of a tensor's dtype.
//
// Errors: equigrad::Error, in the name of `where`, for a dtype that the kernels do not have.
// Depends on: kernels/element.hpp, c10's scalar types.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "engine/error.hpp"
#include "engine/kernels/element.hpp"

namespace equigrad::kernels {

inline Element element_of(at::ScalarType dtype, const std::string& where) {
  if (dtype == at::kFloat) return Element::Fp32;
  if (dtype == at::kBFloat16) return Element::Bf16;
  if (dtype == at::kHalf) return Element::Fp16;
  throw Error(where, std::string("expected dtype Float, BFloat16 or Half, got ") +
                         c10::toString(dtype) + ".");
}

}  // namespace equigrad::kernels
