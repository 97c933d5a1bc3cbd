// Regions: where activations pass from whole to split, or back, on the ranks of a group: functions
// that autograd differentiates, each the transpose of the one beside it.
//
//   forward                                      backward
//   copy_to      the same                        the sum over ranks
//   reduce_from  the sum over ranks              the same
//   scatter_to   this rank's part along a        the parts of all ranks
//                dimension
//   gather_from  the parts of all ranks          this rank's part
//   all_to_all   from whole along `scatter` and  the way back
//                split along `gather` to split
//                along `scatter` and whole along
//                `gather`
//
// A column-parallel layer is linear(copy_to(x)), a row-parallel one reduce_from(linear(x)) plus its
// bias (Shoeybi et al., Megatron-LM, 2019, arXiv:1909.08053, figure 3); attention over a split
// sequence is all_to_all, attention of some heads, all_to_all (Jacobs et al., DeepSpeed-Ulysses,
// 2023, arXiv:2309.14509).
//
// Invariants: a sum adds the W ranks' values in fp32 in the tree of kernels/tree_sum.hpp and rounds
// once to their type, so it is the same on every rank and in every run; nothing else here rounds.
// All ranks of a group call the same function at the same place with equal shapes. A null group is
// one rank: every function is the identity. What a rank's backward needs of its group is kept alive
// by the graph.
// Shapes: as above; a dimension that is cut may have segments (parallel/split.hpp), each cut by
// itself; without any it is one. fp32, bf16 and fp16 are added.
// Errors: equigrad::Error for a dimension that the ranks do not divide; those of the communicator.
// Depends on: comm, split.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/comm/communicator.hpp"
#include "engine/parallel/split.hpp"

namespace equigrad::parallel {

using Group = std::shared_ptr<comm::Communicator>;
using Segments = std::vector<int64_t>;

inline int64_t size_of(const Group& group) { return group ? group->world_size() : 1; }

at::Tensor copy_to(const at::Tensor& whole, const Group& group);
at::Tensor reduce_from(const at::Tensor& part, const Group& group);
at::Tensor scatter_to(const at::Tensor& whole, int64_t dimension, const Group& group,
                      const Segments& segments = {});
at::Tensor gather_from(const at::Tensor& part, int64_t dimension, const Group& group,
                       const Segments& segments = {});
at::Tensor all_to_all(const at::Tensor& part, int64_t scatter, int64_t gather, const Group& group);

// Not differentiated: the sum and the largest value over ranks, [*] -> [*].
at::Tensor sum_over(const at::Tensor& part, const Group& group);
at::Tensor largest_over(const at::Tensor& part, const Group& group);

// One rank's part of a whole tensor, a copy; and the whole, of all ranks' parts in their order.
at::Tensor part_of(const at::Tensor& whole, const Split& split, int64_t rank, int64_t size);
at::Tensor whole_of(const std::vector<at::Tensor>& parts, const Split& split);
// The whole, of the part that each rank of the group gives.
at::Tensor whole_over(const at::Tensor& part, const Split& split, comm::Communicator& group);

}  // namespace equigrad::parallel
