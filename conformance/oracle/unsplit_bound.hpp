// UnsplitBound: how far the gradient of a model that ranks share may be from that of the unsplit
// model in more bits.
//
// Ranks that share a model add parts where one device adds whole rows, so they are neither nearer
// to the exact result nor further from it than another run of the unsplit model that adds in
// another order. One such run in the ranks' precision is a sample of its errors: that all n of its
// comparable errors (an eighth of the largest and more) are below 1/k of what another run's may be
// has a chance of (1/k)^n. k is taken so that this is kChance, at least kLeastFactor, as
// python/equigrad/judge/local_gradients.py takes it. Beside that a reduction over data ranks may
// add what reduction_bound says.
//
// Invariants: a room is measured on a whole parameter, or a rank's part of it, and not on a shard:
// of few errors none may be large. Phase by phase bounds are derived, not measured:
// python/tests/unsplit_bounds.py.
// Shapes: all tensors of one call have the same number of elements; any float dtype.
// Errors: std::runtime_error for sizes that do not agree.
// Depends on: bound.hpp.
#pragma once

#include "conformance/oracle/bound.hpp"

namespace equigrad::conformance::oracle {

constexpr double kChance = 1e-9;
constexpr double kLeastFactor = 16;

// What an element may be off by; 0 where the unsplit run was not rounded at all, infinity where a
// number of it is not finite.
double room_of(const at::Tensor& unsplit, const at::Tensor& reference);

// `engine` is after clipping, the others before; `absolute_sum` as in check_reduction.
BoundReport check_unsplit(const at::Tensor& engine, const at::Tensor& reference, double room,
                          const at::Tensor& absolute_sum, const Reduction& reduction);

}  // namespace equigrad::conformance::oracle
