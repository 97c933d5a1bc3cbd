#include "engine/shard/gradient_shard.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cmath>

#include "engine/error.hpp"
#include "engine/kernels/device_stream.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/kernels/largest.hpp"
#include "engine/kernels/square_sum.hpp"

namespace equigrad::shard {
namespace {

constexpr int64_t kChunkNumel = int64_t{1} << 20;  // of a 16-bit gradient, in fp32 for a moment

// The words of `Norm`, [words_numel] int64 on the CPU. `on_cuda` is its CUDA form.
template <class Norm, class OnCuda>
at::Tensor words_of(const at::Tensor& gradient, const std::vector<Span>& spans, int64_t words_numel,
                    OnCuda on_cuda) {
  const auto type = kernels::element_of(gradient.scalar_type(), "shard.measure");
  if (gradient.is_cuda()) {
    const c10::DeviceGuard guard(gradient.device());
    auto words = at::zeros({words_numel}, gradient.options().dtype(at::kLong));
    for (const auto& [begin, end] : spans)
      on_cuda(gradient.narrow(0, begin, end - begin).const_data_ptr(), type, end - begin,
              words.mutable_data_ptr<int64_t>(), kernels::current_stream(gradient.device()));
    return words.cpu();
  }
  Norm norm;
  for (const auto& [begin, end] : spans)
    norm.add(gradient.narrow(0, begin, end - begin).const_data_ptr(), type, end - begin);
  auto words = at::empty({words_numel}, at::kLong);
  std::copy_n(norm.words(), words_numel, words.mutable_data_ptr<int64_t>());
  return words;
}

// What `spans` leave of [0, numel).
std::vector<Span> others(const std::vector<Span>& spans, int64_t numel) {
  std::vector<Span> rest;
  int64_t begin = 0;
  for (const auto& span : spans) {
    if (begin < span.begin) rest.push_back({begin, span.begin});
    begin = span.end;
  }
  if (begin < numel) rest.push_back({begin, numel});
  return rest;
}

// Of what is repeated the last word alone, the number of elements that are not finite.
template <class Norm, class OnCuda>
at::Tensor counted_words(const at::Tensor& gradient, const std::vector<Span>& repeated,
                         int64_t words_numel, OnCuda on_cuda) {
  const auto words =
      words_of<Norm>(gradient, others(repeated, gradient.numel()), words_numel, on_cuda);
  if (!repeated.empty())
    words[words_numel - 1] +=
        words_of<Norm>(gradient, repeated, words_numel, on_cuda)[words_numel - 1];
  return words;
}

Measure length(const at::Tensor& gradient, comm::Communicator* over,
               const std::vector<Span>& repeated) {
  auto words = counted_words<kernels::SquareSum>(gradient, repeated, kernels::kWords,
                                                 kernels::square_sum_cuda);
  if (over != nullptr) words = comm::exchange(*over, words).sum(0);
  kernels::SquareSum sum;
  std::copy_n(words.const_data_ptr<int64_t>(), kernels::kWords, sum.words());
  return {std::sqrt(sum.value()), sum.non_finite_numel()};
}

Measure largest(const at::Tensor& gradient, comm::Communicator* over,
                const std::vector<Span>& repeated) {
  auto words = counted_words<kernels::Largest>(gradient, repeated, kernels::kLargestWords,
                                               kernels::largest_cuda);
  words = over != nullptr ? comm::exchange(*over, words) : words.unsqueeze(0);
  kernels::Largest all;
  all.words()[0] = words.select(1, 0).max().item<int64_t>();
  all.words()[1] = words.select(1, 1).sum().item<int64_t>();
  return {all.value(), all.non_finite_numel()};
}

// ATen multiplies 16-bit numbers on the CPU by a factor that it has rounded to 16 bits.
void scale_in_fp32(const at::Tensor& gradient, double factor) {
  for (int64_t start = 0; start < gradient.numel(); start += kChunkNumel) {
    const auto part = gradient.narrow(0, start, std::min(kChunkNumel, gradient.numel() - start));
    part.copy_(part.to(at::kFloat).mul_(factor));
  }
}

}  // namespace

Measure measure(const at::Tensor& gradient, comm::Communicator* over, NormType type,
                const std::vector<Span>& repeated) {
  return type == NormType::Two ? length(gradient, over, repeated)
                               : largest(gradient, over, repeated);
}

double clip_(const at::Tensor& gradient, double norm, double threshold) {
  constexpr double kEpsilon = 1e-6;
  if (norm <= threshold) return 1.0;
  const double factor = threshold / (norm + kEpsilon);
  if (gradient.scalar_type() == at::kFloat) {
    gradient.mul_(factor);
  } else {
    scale_in_fp32(gradient, factor);
  }
  return factor;
}

std::optional<std::size_t> first_non_finite(const at::Tensor& gradient,
                                            const layout::BucketPlan& plan, std::size_t parameters,
                                            comm::Communicator& over) {
  EQUIGRAD_CHECK(gradient.numel() == plan.shard_numel(), "shard.overflow",
                 "the gradient is flat over the shard space");
  // The larger the mark, the earlier the parameter; 0 is none.
  int64_t mark = 0;
  for (const auto& bucket : plan.buckets()) {
    for (const auto& slot : bucket.slots) {
      EQUIGRAD_CHECK(slot.parameter < parameters, "shard.overflow", "a slot is a parameter's");
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
