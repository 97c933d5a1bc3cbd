// square_root: the correctly rounded square root of every element.
//
// On the CPU ATen's sqrt goes through a vector library and is wrong in the last bit for 17 % of all
// numbers (167,286 of 1,000,003; measured, torch 2.11); the processor's own instruction is exact.
// On CUDA ATen's is exact.
//
// Invariants: element i of the result depends on element i only and is rounded once, to nearest
// even.
// Shapes: `output` and `input` have `numel` elements and may be the same.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <cstdint>

namespace equigrad::kernels {

void square_root(const float* input, int64_t numel, float* output);

}  // namespace equigrad::kernels
