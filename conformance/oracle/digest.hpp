// Digest: 64 bits that stand for a set of named elements, whoever holds them.
//
//   digest(whole) = digest(shard 0) + digest(shard 1) + ...        (mod 2^64)
//
// Each element adds a hash of (name, step, dtype, its index in the whole tensor, its bits); -0
// counts as +0. Two runs that hold the same values under any partition have equal sums; two that
// differ in one bit have equal sums with probability 2^-64.
//
// Invariants: additive over any split; independent of order; a missing, doubled, moved or altered
//   element changes it. Replicated data must be counted once, by one rank.
// Units: `begin` counts elements of the whole tensor.
// Errors: std::runtime_error for a dtype or device that compare() refuses too.
// Depends on: ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace equigrad::conformance::oracle {

// `values` are the elements [begin, begin + values.numel()) of the tensor `name` at `step`.
uint64_t digest(std::string_view name, int64_t step, int64_t begin, const at::Tensor& values);

}  // namespace equigrad::conformance::oracle
