// Sequence: what the ranks of a sequence group need beside attention (distributed_attention.hpp):
// their part of a batch, and a loss whose gradients may be added.
//
//   const auto part = parallel::split_batch({.tokens = tokens, .labels = tokens}, mesh.sequence());
//   const auto logits = model(part.tokens, part.positions);
//   engine->backward(parallel::sequence_cross_entropy(logits, part.targets, mesh.sequence()));
//
//   tokens     a b c d | e f g h
//   targets    b c d e | f g h -      of labels shifted before the cut, or d would lose its own
//   positions  0 1 2 3 | 4 5 6 7      as in the whole sequence
//
// The mean over the tokens that count is that of the whole sequence: what the ranks have, summed,
// by what they have, counted. A mean of the ranks' means weighs a token by how many of its
// neighbours count. The engine adds the gradients of a sequence's ranks: each gives its own part's.
//
// Invariants: losses are added over the ranks in the tree of kernels/tree_sum.hpp, in fp32, and
//   divided by the number of all that count: the same value on every rank. The backward pass gives
//   a rank the gradient of its own summand, which needs no other rank. No token that counts at all
//   is 0 / 0, as in torch. A null group is one rank. A mask of keys is not cut: attention sees
//   whole sequences.
// Shapes: tokens, labels, positions [batch, sequence], of any integer type; logits [.., entries],
//   targets [..].
// Errors: equigrad::Error for a sequence that the ranks do not divide, and, on all ranks, for
//   tokens that are not the same on all ranks of the group, which names those that differ.
// Depends on: regions, layers for what is ignored, comm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "engine/parallel/layers.hpp"
#include "engine/parallel/regions.hpp"

namespace equigrad::parallel {

struct WholeBatch {
  at::Tensor tokens;
  at::Tensor labels;     // undefined: no targets
  at::Tensor positions;  // undefined: 0, 1, 2, ..
};

struct BatchPart {
  at::Tensor tokens, targets, positions;
};

// This rank's part of a batch that all ranks of the group have.
BatchPart split_batch(const WholeBatch& whole, const Group& group);

// One rank's part along a dimension, a copy; not differentiated (regions.hpp: scatter_to).
at::Tensor sequence_part(const at::Tensor& whole, int64_t dimension, const Group& group);
// Each label at the place before it; the last place is ignored.   [.., sequence]
at::Tensor next_tokens(const at::Tensor& labels, int64_t ignored = kIgnoredTarget);
// `name` of all ranks is that of the first, bit for bit. Collective.
void check_same(const at::Tensor& tensor, const Group& group, const std::string& name);

// Of this rank's sum of losses, a scalar, and of how many tokens it is: their mean over the group.
at::Tensor sequence_mean(const at::Tensor& sum_of_losses, const at::Tensor& valid_tokens,
                         const Group& group);
// The mean of -log softmax over the targets of the group that are not ignored, in fp32.
at::Tensor sequence_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                  const Group& group, int64_t ignored = kIgnoredTarget);

}  // namespace equigrad::parallel
