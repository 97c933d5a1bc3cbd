// GatedModel: one network as the T ranks of a tensor group compute it together, on one device, in
// plain torch: gated (T = 1, the ordinary computation), gated2, gated4.
//
//   x = token [64, 16] of the bytes, modulo 64, + position [8, 16]
//   x += projection(attention(qkv(LayerNorm(x))))   8 query heads share 4 of keys and values, of
//                                                   width 4; q, k and v are one weight [64, 16]
//   x += down(silu(gate) * up of gate_up(RMS norm(x)))   24 wide; both are one weight [48, 16]
//   logits = LayerNorm(x) by the weight of token again [B, 8, 64]
//
// Of T parts every one is a module of its own in its own shape, from contiguous copies:
//
//   a weight      cut along one dimension, each of its segments by itself; its gradient is the
//                 parts' put together again
//   a column      part t of the outputs, of the whole input; the input's gradient is the sum of T
//   a row         part t of the inputs; the output is the sum of T, and then the whole bias
//   a sum of T    (0 + 1) + (2 + 3) in fp32, rounded once to the summands' type
//   token         looked up whole: all but one of T looked-up rows would be nothing
//   loss          the mean of log(sum of T (sum of exp(logits of part t - largest))) + largest -
//                 the target's, in fp32
//
// Its bytes are those of the text, two sequences of 8 in a batch.
//
// Invariants: parameters depend on the seed alone. Norms, biases of rows and position are computed
// once: T ranks would have equal bits. In fp64 all of it is fp64.
// Shapes: Cut's segments add up to the whole's size along its dimension; T divides each.
// Errors: c10::Error for a number of parts that does not divide.
// Depends on: reference/models/model.hpp, reference/models/data.hpp; torch's autograd functions in
// the source. Nothing of the engine's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/models/data.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

struct Cut {
  int64_t dimension = 0;
  std::vector<int64_t> segments;
};
// By parameter; those that are not in it are whole on every rank.
using Cuts = std::map<std::string, Cut>;

bool is_gated(const std::string& model);
// T of a model's name: 4 of gated4, 1 of every model that is not cut.
int parts_of(const std::string& model);
Cuts cuts_of(const std::string& model);
// Part `part` of `parts`, a contiguous copy.
at::Tensor cut_out(const at::Tensor& whole, const Cut& cut, int64_t part, int64_t parts);

std::shared_ptr<reference::Model> make_gated(int parts, uint64_t seed);
reference::Batch gated_batch(const reference::Data& data, const reference::Draw& draw);

}  // namespace equigrad::conformance
