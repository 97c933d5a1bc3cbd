#include "engine/parallel/layers.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <utility>

#include "engine/error.hpp"
#include "engine/parallel/split_marks.hpp"

namespace equigrad::parallel {
namespace {

// This rank's part of a whole parameter, of which the group's first rank's values count.
at::Tensor own_part(const at::Tensor& whole, const Split& split, const Group& group,
                    const std::string& name) {
  if (size_of(group) == 1) return whole.detach();
  const at::NoGradGuard no_grad;
  check_split(split, group->world_size(), name);
  const auto values = whole.detach().to(group->device()).contiguous();
  group->broadcast(values, 0)->wait();
  return part_of(values, split, group->rank(), group->world_size());
}

void mark(const at::Tensor& part, const Split& split, const Group& group) {
  if (size_of(group) > 1) mark_split(part, split, group->world_size());
}

// A scope of gather() may have made it whole.
void check_is_part(const at::Tensor& weight, const Group& group) {
  if (size_of(group) == 1) return;
  const auto split = split_of(weight);
  if (split && weight.sizes().vec() == split->shape)
    throw Error("parallel.layers",
                "expected this rank's part of a weight, got the whole, which a scope of gather() "
                "holds. End the scope first.");
}

// Which entries this rank has: indices as its own, and where they are another's.
struct Owned {
  at::Tensor local, is_foreign;
};

Owned owned(const at::Tensor& indices, int64_t entries, const Group& group) {
  const auto local = indices - (group ? group->rank() : 0) * entries;
  const auto is_foreign = local.lt(0).logical_or_(local.ge(entries));
  return {local.masked_fill(is_foreign, 0), is_foreign};
}

// What is added to any number and changes no bit of it, not even the sign of a zero.
constexpr double kNegativeZero = -0.0;

// Probabilities of this rank's entries are kept for the way back.
struct SplitCrossEntropy final : torch::autograd::Function<SplitCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, const Group& group, int64_t ignored) {
    const auto values = logits.to(at::kFloat);
    const auto [local, is_foreign] = owned(targets, logits.size(1), group);
    const auto largest = largest_over(values.amax(1), group);
    const auto exponentials = (values - largest.unsqueeze(1)).exp_();
    const auto sums = sum_over(exponentials.sum(1), group);
    const auto own = values.gather(1, local.unsqueeze(1)).squeeze(1);
    const auto picked = sum_over(own.masked_fill(is_foreign, kNegativeZero), group);
    const auto is_counted = targets.ne(ignored);
    context->save_for_backward({exponentials.div_(sums.unsqueeze(1)), local,
                                is_counted.logical_and(is_foreign.logical_not()), is_counted});
    context->saved_data["type"] = static_cast<int64_t>(logits.scalar_type());
    return (sums.log() - (picked - largest)).masked_fill(is_counted.logical_not(), 0);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &local = saved[1], &is_own = saved[2], &is_counted = saved[3];
    auto gradient = saved[0].clone();
    gradient.scatter_add_(1, local.unsqueeze(1), is_own.to(at::kFloat).neg().unsqueeze(1));
    gradient.mul_((is_counted.to(at::kFloat) * gradients[0]).unsqueeze(1));
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    return {gradient.to(type), {}, {}, {}};
  }
};

void check_targets(const at::Tensor& targets, int64_t entries, int64_t ignored) {
  const auto is_wrong =
      targets.ne(ignored).logical_and(targets.lt(0).logical_or(targets.ge(entries)));
  if (!targets.is_cpu()) return at::_assert_async(is_wrong.logical_not().all());
  if (!is_wrong.any().item<bool>()) return;
  throw Error(
      "parallel.cross_entropy",
      fmt::format("expected targets from 0 to {}, or {} for one that is ignored, got {}. "
                  "Correct the labels, or make the vocabulary larger.",
                  entries - 1, ignored, targets.masked_select(is_wrong)[0].item<int64_t>()));
}

}  // namespace

at::Tensor column_linear(const at::Tensor& whole, const at::Tensor& weight, const at::Tensor& bias,
                         const Group& group) {
  check_is_part(weight, group);
  return at::linear(copy_to(whole, group), weight, bias);
}

at::Tensor row_linear(const at::Tensor& part, const at::Tensor& weight, const at::Tensor& bias,
                      const Group& group) {
  if (size_of(group) == 1) return at::linear(part, weight, bias);
  check_is_part(weight, group);
  const auto sum = reduce_from(at::linear(part, weight), group);
  return bias.defined() ? sum + bias.to(sum.scalar_type()) : sum;
}

at::Tensor embedding(const at::Tensor& indices, const at::Tensor& weight, const Group& group,
                     std::optional<int64_t> padding) {
  constexpr int64_t kNoPadding = -1;
  if (size_of(group) == 1) return at::embedding(weight, indices, padding.value_or(kNoPadding));
  check_is_part(weight, group);
  const auto [local, is_foreign] = owned(indices, weight.size(0), group);
  const int64_t begin = group->rank() * weight.size(0);
  const bool is_own = padding && *padding >= begin && *padding < begin + weight.size(0);
  const auto rows = at::embedding(weight, local, is_own ? *padding - begin : kNoPadding);
  return reduce_from(rows.masked_fill(is_foreign.unsqueeze(-1), kNegativeZero), group);
}

at::Tensor cross_entropy_by_row(const at::Tensor& logits, const at::Tensor& targets,
                                const Group& group, int64_t ignored) {
  if (logits.dim() != 2 || targets.dim() != 1 || targets.size(0) != logits.size(0))
    throw Error("parallel.cross_entropy",
                "expected logits [rows, entries] and targets [rows], got other shapes. Flatten the "
                "leading dimensions of both.");
  check_targets(targets, logits.size(1) * size_of(group), ignored);
  return SplitCrossEntropy::apply(logits, targets, group, ignored);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const Group& group,
                         int64_t ignored) {
  return cross_entropy_by_row(logits, targets, group, ignored).sum() / targets.ne(ignored).sum();
}

ColumnLinearImpl::ColumnLinearImpl(int64_t in, int64_t out, Group group, bool with_bias,
                                   const Segments& segments)
    : group_(std::move(group)) {
  const torch::nn::LinearImpl whole(torch::nn::LinearOptions(in, out).bias(with_bias));
  auto split = unpacked({out, in}, 0);
  if (!segments.empty()) split.segments = segments;
  weight = register_parameter("weight", own_part(whole.weight, split, group_, "weight"));
  mark(weight, split, group_);
  if (!with_bias) return;
  bias = register_parameter("bias", own_part(whole.bias, bias_split(split), group_, "bias"));
  mark(bias, bias_split(split), group_);
}

at::Tensor ColumnLinearImpl::forward(const at::Tensor& whole) {
  return column_linear(whole, weight, bias, group_);
}

RowLinearImpl::RowLinearImpl(int64_t in, int64_t out, Group group, bool with_bias)
    : group_(std::move(group)) {
  const torch::nn::LinearImpl whole(torch::nn::LinearOptions(in, out).bias(with_bias));
  const auto split = unpacked({out, in}, 1);
  weight = register_parameter("weight", own_part(whole.weight, split, group_, "weight"));
  mark(weight, split, group_);
  if (with_bias) bias = register_parameter("bias", whole.bias.detach());
}

at::Tensor RowLinearImpl::forward(const at::Tensor& part) {
  return row_linear(part, weight, bias, group_);
}

EmbeddingImpl::EmbeddingImpl(int64_t entries, int64_t width, Group group)
    : group_(std::move(group)) {
  const torch::nn::EmbeddingImpl whole(entries, width);
  const auto split = unpacked({entries, width}, 0);
  weight = register_parameter("weight", own_part(whole.weight, split, group_, "weight"));
  mark(weight, split, group_);
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) {
  return embedding(indices, weight, group_);
}

}  // namespace equigrad::parallel
