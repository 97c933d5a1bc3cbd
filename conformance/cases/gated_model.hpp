// GatedModel: one network as the S x T ranks of a mesh compute it together, on one device, in plain
// torch: of one rank the ordinary computation.
//
//   x = token [V, D] + position [C, D]
//   x += projection(attention(qkv(LayerNorm(x))))   query heads share those of keys and values; q,
//                                                   k and v are one weight
//   x += down(silu(gate) * up of gate_up(RMS norm(x)))   both are one weight; block by block
//   logits = LayerNorm(x) by the weight of token again, or by one of its own, [B, C, V]
//
// In the matrix: gated, gated2 and gated4 are T = 1, 2 and 4 of the sizes that GatedSizes begins
// with, gated2x2 is T = 2 and S = 2, dropout2 is T = 2 with dropouts; bytes of the text, modulo 64,
// two sequences of 8 in a batch. Some targets do not count. Generated cases draw sizes.
//
// Dropouts of a half: of the gated hidden units, in T parts, and of what both rows give, whole
// (dropped_out.hpp).
//
// Of T parts every one is a module of its own (tensor_parts.hpp):
//
//   a column      part t of the outputs, of the whole input; the input's gradient is the sum of T
//   a row         part t of the inputs; the output is the sum of T, and then the whole bias
//   a sum of T    (0 + 1) + (2 + 3) in fp32, rounded once to the summands' type
//   token         looked up whole: all but one of T looked-up rows would be nothing
//   loss          the mean over the targets that count; of logits in parts, or put together
//
// Of S parts of a sequence every one goes its way alone but for attention (sequence_parts.hpp), and
// the loss is the sum of theirs by how many targets count in all; output is [S, B, C / S, V] then.
//
// Invariants: parameters depend on the seed and the sizes alone, not on S and T. Norms, biases of
// rows and position are computed once for T ranks, which would have equal bits. Gradients are of
// one part of the sequence or of all (model_parts.hpp). In fp64 all of it is fp64.
// Shapes: those of GatedSizes; input and target [B, C] int64.
// Errors: c10::Error for a number of parts that does not divide.
// Depends on: gated_sizes.hpp, tensor_parts.hpp, reference/models/model.hpp,
// reference/models/data.hpp; sequence_parts.hpp in the source. Nothing of the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "conformance/cases/gated_sizes.hpp"
#include "conformance/cases/tensor_parts.hpp"
#include "reference/models/data.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

bool is_gated(const std::string& model);
// Of a model of the matrix; one rank of every model that is none.
GatedSizes gated_sizes(const std::string& model);
// T of a model's name: 4 of gated4, 1 of every model that is not cut.
int parts_of(const std::string& model);
Cuts cuts_of(const std::string& model);
Cuts cuts_of(const GatedSizes& sizes);

std::shared_ptr<reference::Model> make_gated(const GatedSizes& sizes, uint64_t seed);
reference::Batch gated_batch(const reference::Data& data, const reference::Draw& draw);
// Those whose names have `word` are not trained from now on; an empty word is in none.
void freeze(const reference::Model& model, const std::string& word);

}  // namespace equigrad::conformance
