// Accumulator: this rank's sum of reduced gradients over the accumulation window.
//
// A backward pass is a transaction: what it adds counts after commit(), and rollback() leaves the
// window as it was before. The first pass of a window writes into it at once, so that without
// accumulation nothing is held twice; a later one holds its sums until commit().
//
// Invariants: the first sum of a window is stored, every later one added in fp32, and each result
// rounded once to the accumulate dtype, in the order of arrival; with fp32 no rounding but the
// addition's own happens. Exact sums (kernels/exact_tensor.hpp) are merged without rounding, and
// rounded once to fp32 where they are read. average() multiplies once, in fp32, by the factor of
// loss/divisors.hpp.
// Shapes: one flat tensor over the rank's shard space, [plan.shard_numel()]; sums come bucket by
// bucket.
// Errors: none.
// Depends on: layout/bucket_plan, memory/ledger, kernels/exact_tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "engine/layout/bucket_plan.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::gradient {

class Accumulator {
 public:
  Accumulator(const layout::BucketPlan& plan, at::TensorOptions options, memory::Ledger& ledger);
  ~Accumulator();
  Accumulator(const Accumulator&) = delete;
  Accumulator& operator=(const Accumulator&) = delete;

  // Adds weight * sum, where `sum` is of bucket `bucket`; may write into `sum`, and may keep it.
  void add(std::size_t bucket, at::Tensor sum, double weight);
  // Where the first sum of a bucket may be written before it is added; undefined if it may not.
  at::Tensor block(std::size_t bucket);
  void commit();
  void rollback();

  // The window's average: multiplied in fp32, rounded once to `dtype`. Takes the window's memory
  // where it can, so the window is empty afterwards.
  at::Tensor take_averaged(double factor, at::ScalarType dtype = at::kFloat);
  // Elements [begin, begin + numel) of what was committed, in the accumulate dtype, exact sums
  // rounded; zeros where nothing was.
  at::Tensor slice(int64_t begin, int64_t numel) const;
  // Sets them to zero.
  void forget(int64_t begin, int64_t numel);
  void clear();

 private:
  struct Staged {
    std::size_t bucket;
    at::Tensor sum;
  };
  void write(std::size_t bucket, const at::Tensor& sum);
  void open(const at::Tensor& window);
  void clear_missing();

  const layout::BucketPlan& plan_;
  at::TensorOptions options_;  // accumulate dtype, device
  memory::Ledger& ledger_;
  at::Tensor window_;             // [plan.shard_numel()], undefined while nothing has arrived
  std::vector<bool> has_bucket_;  // which buckets hold a sum of this window
  bool committed_ = false;        // the window holds an earlier pass's sums
  std::vector<Staged> staged_;    // of the pass under way, in order of arrival
};

// values * factor, in fp32, rounded once to `dtype`; writes into `values` if the type is the same.
at::Tensor multiplied(const at::Tensor& values, double factor, at::ScalarType dtype);

}  // namespace equigrad::gradient
