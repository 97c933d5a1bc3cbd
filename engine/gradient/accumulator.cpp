#include "engine/gradient/accumulator.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace equigrad::gradient {

Accumulator::Accumulator(const layout::BucketPlan& plan, at::TensorOptions options,
                         trace::Ledger& ledger)
    : plan_(plan), options_(options), ledger_(ledger), has_bucket_(plan.buckets().size(), false) {}

Accumulator::~Accumulator() { clear(); }

void Accumulator::add(std::size_t bucket, at::Tensor sum, double weight) {
  if (!window_.defined()) {
    window_ = at::zeros({plan_.shard_numel()}, options_);
    ledger_.charge(trace::Category::Gradients, static_cast<int64_t>(window_.nbytes()));
  }
  if (weight != 1.0) sum = sum.to(at::kFloat).mul_(weight);
  const auto& place = plan_.buckets()[bucket];
  auto slice = window_.narrow(0, place.offset, place.shard_numel);
  if (!has_bucket_[bucket]) {
    slice.copy_(sum);
  } else if (window_.scalar_type() == at::kFloat) {
    slice.add_(sum);
  } else {
    slice.copy_(slice.to(at::kFloat).add_(sum));
  }
  has_bucket_[bucket] = true;
}

at::Tensor Accumulator::take_averaged(double factor) {
  if (!window_.defined()) return at::zeros({plan_.shard_numel()}, options_.dtype(at::kFloat));
  auto average = window_.to(at::kFloat).mul_(factor);
  clear();
  return average;
}

void Accumulator::clear() {
  if (window_.defined()) {
    ledger_.credit(trace::Category::Gradients, static_cast<int64_t>(window_.nbytes()));
  }
  window_.reset();
  std::fill(has_bucket_.begin(), has_bucket_.end(), false);
}

}  // namespace equigrad::gradient
