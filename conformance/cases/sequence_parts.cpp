#include "conformance/cases/sequence_parts.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "conformance/cases/model_parts.hpp"

namespace equigrad::conformance {
namespace {

using Shares = torch::autograd::variable_list;

struct TakenTimes : torch::autograd::Function<TakenTimes> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& heads,
                            int64_t times) {
    context->saved_data["times"] = times;
    return heads.repeat_interleave(times, 2);
  }
  static Shares backward(torch::autograd::AutogradContext* context, const Shares& gradients) {
    const int64_t times = context->saved_data["times"].toInt();
    return {tree_sum(gradients[0].unflatten(2, {-1, times}).unbind(3)).contiguous(), {}};
  }
};

// Of parts of the sequence, the whole of some heads; and of these, parts of the sequence.
Shares traded(const Shares& given, int64_t from, int64_t to) {
  if (given.size() == 1) return given;
  std::vector<Shares> pieces(given.size());
  for (const at::Tensor& one : given) {
    const auto cut = one.chunk(static_cast<int64_t>(given.size()), from);
    for (size_t part = 0; part < given.size(); ++part) pieces[part].push_back(cut[part]);
  }
  Shares taken;
  for (const Shares& each : pieces) taken.push_back(at::cat(each, to).contiguous());
  return taken;
}

// Of some heads.
at::Tensor masked_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& mask) {
  const int64_t shared = query.size(2) / key.size(2);
  const at::Tensor keys = key.transpose(1, 2).repeat_interleave(shared, 1);
  const at::Tensor values = value.transpose(1, 2).repeat_interleave(shared, 1);
  const at::Tensor scores = at::matmul(query.transpose(1, 2), keys.transpose(2, 3)) /
                            std::sqrt(static_cast<double>(query.size(3)));
  const at::Tensor weights = at::softmax(scores.masked_fill(mask, -INFINITY), -1);
  return at::matmul(weights, values).transpose(1, 2);
}

}  // namespace

at::Tensor piece_of(const at::Tensor& whole, int64_t part, int64_t parts) {
  const int64_t length = whole.size(1) / parts;
  return whole.narrow(1, part * length, length).contiguous();
}

at::Tensor hidden_from(const at::Tensor& tokens, bool has_padding) {
  const int64_t length = tokens.size(1);
  const auto booleans = tokens.options().dtype(at::kBool);
  const at::Tensor later = at::ones({length, length}, booleans).triu(1);
  if (!has_padding) return later.expand({tokens.size(0), 1, length, length});
  const at::Tensor padding = tokens.remainder(4).eq(0).unsqueeze(1);
  const at::Tensor others = at::eye(length, booleans).logical_not();
  return (padding.logical_and(others)).logical_or(later).unsqueeze(1);
}

at::Tensor next_labels(const at::Tensor& labels) {
  const int64_t length = labels.size(1);
  at::Tensor next = at::full_like(labels, kUncounted);
  next.slice(1, 0, length - 1).copy_(labels.slice(1, 1, length));
  return next;
}

std::vector<at::Tensor> attention_of_parts(const PartsOfHeads& heads, const at::Tensor& mask) {
  const auto parts = static_cast<int64_t>(heads.queries.size());
  const auto taken = [&](const Shares& given) {
    const int64_t times = parts / given[0].size(2);
    Shares all;
    for (const at::Tensor& one : given)
      all.push_back(times > 1 ? TakenTimes::apply(one, times) : one);
    return traded(all, 2, 1);
  };
  const auto queries = traded(heads.queries, 2, 1);
  const auto keys = taken(heads.keys), values = taken(heads.values);
  Shares mixed;
  for (size_t group = 0; group < queries.size(); ++group)
    mixed.push_back(masked_attention(queries[group], keys[group], values[group], mask));
  return traded(mixed, 1, 2);
}

}  // namespace equigrad::conformance
