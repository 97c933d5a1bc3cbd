// TensorParts: what the T ranks of a tensor group have of a tensor and compute of it, all of them
// on one device, in plain torch: for networks that they compute together (gated_model.hpp).
//
//   a weight      cut along one dimension, each of its segments by itself; its gradient is the
//                 parts' put together again
//   copies        of a whole input, one for each part; the input's gradient is the sum of theirs
//   a row's loss  log(sum of T (sum of exp(logits of part t - largest))) less (the target's logit -
//                 largest), in fp32; 0 where the target does not count
//
// Every part is a contiguous copy in its own shape.
//
// Invariants: sums of T are those of model_parts.hpp. In fp64 all of it is fp64.
// Shapes: a Cut's segments add up to the whole's size along its dimension; T divides each.
// Errors: c10::Error for a number of parts that does not divide.
// Depends on: model_parts.hpp; torch's autograd functions in the source. Nothing of the engine's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace equigrad::conformance {

struct Cut {
  int64_t dimension = 0;
  std::vector<int64_t> segments;
};
// By parameter; those that are not in it are whole on every rank.
using Cuts = std::map<std::string, Cut>;

// Part `part` of `parts`, a contiguous copy. Not differentiated.
at::Tensor cut_out(const at::Tensor& whole, const Cut& cut, int64_t part, int64_t parts);

std::vector<at::Tensor> cut_apart(const at::Tensor& whole, const Cut& cut, int64_t parts);
at::Tensor put_together(const std::vector<at::Tensor>& parts, const Cut& cut);
std::vector<at::Tensor> copies_of(const at::Tensor& whole, int64_t parts);
// [rows], of logits [rows, V] and targets [rows], kUncounted where they do not count.
at::Tensor losses_of_parts(const at::Tensor& logits, const at::Tensor& targets, int64_t parts);

}  // namespace equigrad::conformance
