// Gradient shard: this rank's slice of the averaged gradient, checked, measured and clipped.
//
// Invariants: the norm is the square root of the exact sum of squares over all ranks' shards
// (kernels/square_sum.hpp), so it does not depend on the partition, on W, or on any order; below
// the threshold clipping changes no bit; above it every element is multiplied once, in fp32, by
// threshold / (norm + 1e-6), the factor of torch's clip_grad_norm_ and DeepSpeed, itself rounded
// once to fp32; a product is rounded once more to a gradient's 16 bits. The infinity norm is the
// largest absolute value (kernels/largest.hpp).
// Shapes: fp32, bf16 or fp16, flat over the shard space, padding zero.
// Errors: equigrad::Error for another dtype; what a non-finite gradient means is the engine's
// decision.
// Depends on: comm/communicator, config's NormType, layout, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/comm/communicator.hpp"
#include "engine/config/config.hpp"
#include "engine/layout/bucket_plan.hpp"

namespace equigrad::shard {

struct Measure {
  double norm = 0;  // of the finite elements
  int64_t non_finite_numel = 0;
};

// Elements [begin, end) of a shard.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
};

// `over` adds up the shards of all ranks; null where every rank holds the whole gradient. The norm
// leaves out what is `repeated`, in ascending order: another rank of `over` has the same elements,
// and counts them. Those that are not finite count everywhere.
Measure measure(const at::Tensor& gradient, comm::Communicator* over, NormType type = NormType::Two,
                const std::vector<Span>& repeated = {});

// Writes into `gradient`; the factor that was applied, 1 where nothing was touched.
double clip_(const at::Tensor& gradient, double norm, double threshold);

// The first parameter, in registration order, with a non-finite element on any rank.
std::optional<std::size_t> first_non_finite(const at::Tensor& gradient,
                                            const layout::BucketPlan& plan, std::size_t parameters,
                                            comm::Communicator& over);

}  // namespace equigrad::shard
