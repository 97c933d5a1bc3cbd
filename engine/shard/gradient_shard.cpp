#include "engine/shard/gradient_shard.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>

#include "engine/kernels/square_sum.hpp"

namespace equigrad::shard {
namespace {

// The words of the exact sum, [kWords] int64 on the gradient's device.
at::Tensor square_sum_words(const at::Tensor& gradient) {
  const auto options = gradient.options().dtype(at::kLong);
  if (gradient.is_cuda()) {
    const c10::cuda::CUDAGuard guard(gradient.device());
    auto words = at::zeros({kernels::kWords}, options);
    kernels::square_sum_cuda(gradient.const_data_ptr<float>(), gradient.numel(),
                             words.mutable_data_ptr<int64_t>(),
                             c10::cuda::getCurrentCUDAStream(gradient.device().index()).stream());
    return words;
  }
  kernels::SquareSum sum;
  sum.add(gradient.const_data_ptr<float>(), gradient.numel());
  auto words = at::empty({kernels::kWords}, options);
  std::copy_n(sum.words(), kernels::kWords, words.mutable_data_ptr<int64_t>());
  return words;
}

}  // namespace

Measure measure(const at::Tensor& gradient, comm::Communicator* over) {
  auto words = square_sum_words(gradient).cpu();
  if (over != nullptr) words = comm::exchange(*over, words).sum(0);
  kernels::SquareSum sum;
  std::copy_n(words.const_data_ptr<int64_t>(), kernels::kWords, sum.words());
  return {std::sqrt(sum.value()), sum.non_finite_numel()};
}

double clip_(const at::Tensor& gradient, double norm, double threshold) {
  constexpr double kEpsilon = 1e-6;
  if (norm <= threshold) return 1.0;
  const double factor = threshold / (norm + kEpsilon);
  gradient.mul_(factor);
  return factor;
}

std::optional<std::size_t> first_non_finite(const at::Tensor& gradient,
                                            const layout::BucketPlan& plan, std::size_t parameters,
                                            comm::Communicator& over) {
  // The larger the mark, the earlier the parameter; 0 is none.
  int64_t mark = 0;
  for (const auto& bucket : plan.buckets()) {
    for (const auto& slot : bucket.slots) {
      const auto slice = gradient.narrow(0, bucket.offset + slot.offset, slot.shard_numel);
      if (at::isfinite(slice).all().item<bool>()) continue;
      mark = std::max(mark, static_cast<int64_t>(parameters - slot.parameter));
    }
  }
  mark = comm::exchange(over, at::full({1}, mark, at::kLong)).max().item<int64_t>();
  if (mark == 0) return std::nullopt;
  return parameters - static_cast<std::size_t>(mark);
}

}  // namespace equigrad::shard
