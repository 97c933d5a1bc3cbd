// Split marks: parameters that are one rank's part of a larger one, as their layers say when they
// make them, and as initialize() and checkpoints ask.
//
// Invariants: a mark goes with its parameter.
// Errors: equigrad::Error where the parameter has not the shape of a part.
// Depends on: split.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "engine/parallel/split.hpp"

namespace equigrad::parallel {

// `part` is one of `size` parts of a parameter that `split` cuts.
void mark_split(const at::Tensor& part, const Split& split, int64_t size);
std::optional<Split> split_of(const at::Tensor& parameter);

}  // namespace equigrad::parallel
