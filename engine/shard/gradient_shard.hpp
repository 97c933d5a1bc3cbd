// Gradient shard: this rank's slice of the averaged gradient, checked, measured and clipped.
//
// Invariants: the norm is the square root of the exact sum of squares over all ranks' shards
// (kernels/square_sum.hpp), so it does not depend on the partition, on W, or on any order; below
// the threshold clipping changes no bit; above it every element is multiplied once, in fp32, by
// threshold / (norm + 1e-6), the factor of torch's clip_grad_norm_ and DeepSpeed.
// Shapes: fp32, flat over the shard space, padding zero.
// Errors: none; what a non-finite gradient means is the engine's decision.
// Depends on: comm/communicator, layout, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "engine/comm/communicator.hpp"
#include "engine/layout/bucket_plan.hpp"

namespace equigrad::shard {

struct Measure {
  double norm = 0;  // of the finite elements
  int64_t non_finite_numel = 0;
};

// `over` adds up the shards of all ranks; null where every rank holds the whole gradient.
Measure measure(const at::Tensor& gradient, comm::Communicator* over);

// Writes into `gradient`; the factor that was applied, 1 where nothing was touched.
double clip_(const at::Tensor& gradient, double norm, double threshold);

// The first parameter, in registration order, with a non-finite element on any rank.
std::optional<std::size_t> first_non_finite(const at::Tensor& gradient,
                                            const layout::BucketPlan& plan, std::size_t parameters,
                                            comm::Communicator& over);

}  // namespace equigrad::shard
