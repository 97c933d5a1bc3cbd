#include "engine/parallel/distributed_attention.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "engine/comm/reduction.hpp"
#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

constexpr const char* kWhere = "parallel.DistributedAttention";

// Every head `copies` times, one after the other.
struct Repeated final : torch::autograd::Function<Repeated> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& heads,
                            int64_t dimension, int64_t copies) {
    context->saved_data["dimension"] = dimension;
    context->saved_data["copies"] = copies;
    return heads.repeat_interleave(copies, dimension);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const int64_t dimension = context->saved_data["dimension"].toInt();
    const int64_t copies = context->saved_data["copies"].toInt();
    const auto rows = gradients[0].unflatten(dimension, {-1, copies}).movedim(dimension + 1, 0);
    const auto flat = rows.contiguous().view({copies, -1});
    return {comm::tree_sum(flat, flat.scalar_type()).view(rows.sizes().slice(1)), {}, {}};
  }
};

struct Counts {
  int64_t query, key_value, ranks;
};

[[noreturn]] void refuse(const char* expected, const Counts& counts, const char* remedy) {
  throw Error(kWhere,
              fmt::format("expected {}, got {} query heads and {} key/value heads on {} ranks of a "
                          "sequence. {}",
                          expected, counts.query, counts.key_value, counts.ranks, remedy));
}

void check_heads(const Counts& counts) {
  constexpr const char* kRemedy =
      "Choose a \"sequence_parallel_size\" that divides the query heads, and of which the number "
      "of key/value heads is a multiple or a divisor.";
  if (counts.query % counts.ranks != 0)
    refuse("query heads that the ranks divide", counts, kRemedy);
  if (counts.key_value < 1 || counts.query % counts.key_value != 0)
    refuse("as many query heads for each key/value head", counts,
           "Give all heads of queries, keys and values, at the dimension that is scattered.");
  if (counts.key_value % counts.ranks != 0 && counts.ranks % counts.key_value != 0)
    refuse("key/value heads that the ranks divide, or a number of them that divides the ranks",
           counts, kRemedy);
}

void check_shapes(const Attended& parts, AttentionDimensions at) {
  const bool agree = parts.query.dim() == parts.key.dim() && parts.key.dim() == parts.value.dim() &&
                     at.heads != at.sequence && std::min(at.heads, at.sequence) >= 0 &&
                     std::max(at.heads, at.sequence) < parts.query.dim() &&
                     parts.key.size(at.heads) == parts.value.size(at.heads) &&
                     parts.key.size(at.sequence) == parts.value.size(at.sequence);
  if (agree) return;
  throw Error(
      kWhere,
      fmt::format("expected query, key and value of as many dimensions, the latter two of "
                  "the same heads at {} and the same sequence at {}, got dimensions {}, {} "
                  "and {}. See the two dimensions that DistributedAttention was given.",
                  at.heads, at.sequence, parts.query.dim(), parts.key.dim(), parts.value.dim()));
}

AttentionDimensions wrapped(AttentionDimensions given, const at::Tensor& tensor) {
  if (given.heads < 0) given.heads += tensor.dim();
  if (given.sequence < 0) given.sequence += tensor.dim();
  return given;
}

}  // namespace

Attended scatter_heads(const Attended& parts, const Group& group, AttentionDimensions dimensions) {
  const int64_t ranks = size_of(group);
  if (ranks == 1) return parts;
  const auto at = wrapped(dimensions, parts.query);
  check_shapes(parts, at);
  const Counts counts{parts.query.size(at.heads), parts.key.size(at.heads), ranks};
  check_heads(counts);
  const int64_t copies = counts.key_value < ranks ? ranks / counts.key_value : 1;
  const auto traded = [&](const at::Tensor& part, int64_t times) {
    return all_to_all(times == 1 ? part : Repeated::apply(part, at.heads, times), at.heads,
                      at.sequence, group);
  };
  return {traded(parts.query, 1), traded(parts.key, copies), traded(parts.value, copies)};
}

at::Tensor gather_heads(const at::Tensor& output, const Attended& scattered, const Group& group,
                        AttentionDimensions dimensions) {
  if (size_of(group) == 1) return output;
  const auto at = wrapped(dimensions, scattered.query);
  const bool is_of_query = output.dim() == scattered.query.dim() &&
                           output.size(at.heads) == scattered.query.size(at.heads) &&
                           output.size(at.sequence) == scattered.query.size(at.sequence);
  if (is_of_query) return all_to_all(output, at.sequence, at.heads, group);
  throw Error(
      kWhere,
      fmt::format("expected of the local attention an output with the {} heads of its "
                  "queries at {} and their {} positions at {}, got a shape of [{}]. Lay "
                  "it out as the queries are.",
                  scattered.query.size(at.heads), at.heads, scattered.query.size(at.sequence),
                  at.sequence, fmt::join(output.sizes(), ", ")));
}

}  // namespace equigrad::parallel
