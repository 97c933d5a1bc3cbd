// Accumulator: this rank's sum of reduced gradients over the accumulation window.
//
// Invariants: the first sum of a window is stored, every later one added in fp32, and each result
// rounded once to the accumulate dtype, in the order of arrival; with fp32 no rounding but the
// addition's own happens. averaged() multiplies once, in fp32, by the factor of loss/divisors.hpp.
// Shapes: one flat tensor over the rank's shard space, [plan.shard_numel()]; sums come bucket by
// bucket.
// Errors: none.
// Depends on: layout/bucket_plan, trace/ledger.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "engine/layout/bucket_plan.hpp"
#include "engine/trace/ledger.hpp"

namespace equigrad::gradient {

class Accumulator {
 public:
  Accumulator(const layout::BucketPlan& plan, at::TensorOptions options, trace::Ledger& ledger);
  ~Accumulator();
  Accumulator(const Accumulator&) = delete;
  Accumulator& operator=(const Accumulator&) = delete;

  // Adds weight * sum, where `sum` is of bucket `bucket`; may write into `sum`.
  void add(std::size_t bucket, at::Tensor sum, double weight);
  // The window's average in fp32; takes the window's memory where it can, so the window is empty
  // afterwards.
  at::Tensor take_averaged(double factor);
  void clear();

 private:
  const layout::BucketPlan& plan_;
  at::TensorOptions options_;  // accumulate dtype, device
  trace::Ledger& ledger_;
  at::Tensor window_;             // [plan.shard_numel()], undefined while nothing has arrived
  std::vector<bool> has_bucket_;  // which buckets hold a sum of this window
};

}  // namespace equigrad::gradient
