// DistributedAttention: attention over a sequence of which every rank of a group has a part.
//
//   auto attention = parallel::DistributedAttention(
//       [](auto query, auto key, auto value, bool causal) { ... }, mesh.sequence());
//   auto output = attention(query, key, value, /*causal=*/true);
//
//   part of the sequence, all heads --> whole sequence, some heads --> attention --> back
//
// Queries, keys and values trade their part of the sequence for some heads, and the output trades
// back (Jacobs et al., DeepSpeed-Ulysses, 2023, arXiv:2309.14509). Keys and values may be of
// another sequence than the queries. A rank has the key/value heads of its query heads: where there
// are fewer of them than ranks, neighbours have the same one, whose gradient is the sum of theirs.
//
// Invariants: the local attention sees whole sequences, in the order of the ranks: its masks and
//   positions are those of the whole. Of W ranks, rank r has the r-th W-th of the query heads. What
//   is traded keeps its bits; gradients of a head that several ranks have are added in fp32 in the
//   tree of kernels/tree_sum.hpp, in the order of the ranks, and rounded once. A null group is one
//   rank, and the local attention is called as it is.
// Shapes: query [.., part, .., heads, .., width], the parts of all ranks equally long; key and
//   value alike, with their own part and number of heads; the output like the query, of any width.
// Errors: equigrad::Error for heads that ranks do not divide and for an output of another shape;
//   those of the communicator.
// Depends on: regions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "engine/parallel/regions.hpp"

namespace equigrad::parallel {

struct Attended {
  at::Tensor query, key, value;
};

// Where heads are counted, and where the sequence lies.
struct AttentionDimensions {
  int64_t heads = 2;
  int64_t sequence = 1;
};

// From a part of the sequence and all heads to the whole sequence and some heads.
Attended scatter_heads(const Attended& parts, const Group& group, AttentionDimensions dimensions);
// The way back, of the attention of `scattered`.
at::Tensor gather_heads(const at::Tensor& output, const Attended& scattered, const Group& group,
                        AttentionDimensions dimensions);

template <class LocalAttention>
class DistributedAttention {
 public:
  DistributedAttention(LocalAttention local_attention, Group group, int64_t scatter_dimension = 2,
                       int64_t gather_dimension = 1)
      : local_attention_(std::move(local_attention)),
        group_(std::move(group)),
        dimensions_{.heads = scatter_dimension, .sequence = gather_dimension} {}

  // `more` goes to the local attention as it is.
  template <class... More>
  at::Tensor operator()(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        More&&... more) {
    const auto scattered = scatter_heads({query, key, value}, group_, dimensions_);
    const at::Tensor output = local_attention_(scattered.query, scattered.key, scattered.value,
                                               std::forward<More>(more)...);
    return gather_heads(output, scattered, group_, dimensions_);
  }

 private:
  LocalAttention local_attention_;
  Group group_;
  AttentionDimensions dimensions_;
};

}  // namespace equigrad::parallel
