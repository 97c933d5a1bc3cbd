#include "engine/gradient/accumulator.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::gradient {
namespace {

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// Converted at a time: what is wide stays small.
constexpr int64_t kChunkNumel = int64_t{1} << 16;

bool is_exact(const at::Tensor& sums) { return sums.scalar_type() == kernels::kExactSum; }

}  // namespace

at::Tensor multiplied(const at::Tensor& values, double factor, at::ScalarType dtype) {
  if (dtype == at::kFloat && !is_exact(values)) return values.to(at::kFloat).mul_(factor);
  const auto result = values.scalar_type() == dtype
                          ? values
                          : at::empty_like(values, values.options().dtype(dtype));
  for (int64_t begin = 0; begin < values.numel(); begin += kChunkNumel) {
    const int64_t numel = std::min(kChunkNumel, values.numel() - begin);
    const auto part = values.narrow(0, begin, numel);
    const auto wide = is_exact(values) ? kernels::exact_rounded(part)
                                       : part.to(at::kFloat, /*non_blocking=*/false,
                                                 /*copy=*/true);
    result.narrow(0, begin, numel).copy_(wide.mul_(factor));
  }
  return result;
}

Accumulator::Accumulator(const layout::BucketPlan& plan, at::TensorOptions options,
                         memory::Ledger& ledger)
    : plan_(plan), options_(options), ledger_(ledger), has_bucket_(plan.buckets().size(), false) {}

Accumulator::~Accumulator() { clear(); }

void Accumulator::add(std::size_t bucket, at::Tensor sum, double weight) {
  if (weight != 1.0) sum = sum.to(at::kFloat).mul_(weight);
  if (!committed_) return write(bucket, sum);
  ledger_.charge(memory::Category::Gradients, bytes_of(sum));
  staged_.push_back({bucket, std::move(sum)});
}

void Accumulator::open(const at::Tensor& window) {
  window_ = window;
  ledger_.charge(memory::Category::Gradients, bytes_of(window_));
}

at::Tensor Accumulator::block(std::size_t bucket) {
  if (committed_ || has_bucket_[bucket]) return {};
  if (!window_.defined()) open(at::empty({plan_.shard_numel()}, options_));
  const auto& place = plan_.buckets()[bucket];
  return window_.narrow(0, place.offset, place.shard_numel);
}

void Accumulator::write(std::size_t bucket, const at::Tensor& sum) {
  const auto& place = plan_.buckets()[bucket];
  if (!window_.defined()) {
    // A sum of everything is the window.
    const bool is_all = sum.numel() == plan_.shard_numel() && sum.dtype() == options_.dtype();
    open(is_all ? sum : at::empty({plan_.shard_numel()}, options_));
    has_bucket_[bucket] = is_all;
    if (is_all) return;
  }
  const auto slice = window_.narrow(0, place.offset, place.shard_numel);
  if (!has_bucket_[bucket]) {
    if (slice.const_data_ptr() != sum.const_data_ptr()) slice.copy_(sum);
  } else if (is_exact(window_)) {
    kernels::exact_add_(slice, sum);
  } else if (window_.scalar_type() == at::kFloat) {
    slice.add_(sum);
  } else {
    slice.copy_(slice.to(at::kFloat).add_(sum));
  }
  has_bucket_[bucket] = true;
}

void Accumulator::commit() {
  for (auto& staged : staged_) {
    write(staged.bucket, staged.sum);
    ledger_.credit(memory::Category::Gradients, bytes_of(staged.sum));
    staged.sum.reset();
  }
  staged_.clear();
  clear_missing();
  committed_ = true;
}

void Accumulator::clear_missing() {
  for (std::size_t bucket = 0; window_.defined() && bucket < has_bucket_.size(); ++bucket) {
    const auto& place = plan_.buckets()[bucket];
    if (!has_bucket_[bucket]) window_.narrow(0, place.offset, place.shard_numel).zero_();
  }
}

void Accumulator::rollback() {
  if (!committed_) return clear();
  for (const auto& staged : staged_) {
    if (!staged.sum.defined()) continue;  // commit() threw midway
    ledger_.credit(memory::Category::Gradients, bytes_of(staged.sum));
  }
  staged_.clear();
}

at::Tensor Accumulator::take_averaged(double factor, at::ScalarType dtype) {
  if (!window_.defined()) {
    clear();
    return at::zeros({plan_.shard_numel()}, options_.dtype(dtype));
  }
  clear_missing();
  auto average = multiplied(window_, factor, dtype);
  // Beside the window, unless it took its memory.
  const memory::Charge charge(ledger_, memory::Category::Gradients,
                              average.is_alias_of(window_) ? 0 : bytes_of(average));
  clear();
  return average;
}

at::Tensor Accumulator::slice(int64_t begin, int64_t numel) const {
  const bool is_empty = !committed_ || !window_.defined();
  const auto sums =
      is_empty ? at::zeros({numel}, options_) : window_.narrow(0, begin, numel).clone();
  return is_exact(sums) ? kernels::exact_rounded(sums) : sums;
}

void Accumulator::forget(int64_t begin, int64_t numel) {
  if (window_.defined()) window_.narrow(0, begin, numel).zero_();
}

void Accumulator::clear() {
  committed_ = true;
  rollback();
  committed_ = false;
  if (window_.defined()) ledger_.credit(memory::Category::Gradients, bytes_of(window_));
  window_.reset();
  std::fill(has_bucket_.begin(), has_bucket_.end(), false);
}

}  // namespace equigrad::gradient
