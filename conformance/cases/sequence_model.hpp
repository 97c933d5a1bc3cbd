// SequenceModel: one network as the S ranks of a sequence group compute it together, on one device,
// in plain torch: ulysses (S = 1, the ordinary computation), ulysses2, ulysses4.
//
//   x = token [64, 16] of the bytes, modulo 64, + place [16, 16] of their positions
//   x += projection(attention(qkv(LayerNorm(x))))   twice: 8 query heads share 4 of keys and
//                                                   values, then 1, of width 4
//   logits = LayerNorm(x) by the weight of token again; [S, B, 16 / S, 64], part by part
//
// Part s of S has the positions s C / S to (s + 1) C / S, and computes all that is not attention
// from contiguous copies in its own shapes. Attention is computed by S groups of heads, each of the
// whole sequence:
//
//   a key/value head  that R groups share is taken R times; its gradient is the sum of R
//   a token           sees what is before it, without the padding, and itself
//   loss              the sum of S sums of -log softmax over the labels that count, each shifted to
//                     the place before it, by how many count in the whole sequence
//   a sum of parts    (0 + 1) + (2 + 3) in fp32, rounded once
//
// Its bytes are those of the text, two sequences of 16 in a batch, whose target is labels that are
// not shifted; a different number of them counts in every part.
//
// Invariants: parameters depend on the seed alone; gradients are of one part or of all, as
// model_parts.hpp says. In fp64 all of it is fp64.
// Shapes: input and target [2, 16] int64, kUncounted where a label does not count.
// Errors: none of its own.
// Depends on: model_parts.hpp, reference/models/model.hpp, reference/models/data.hpp;
// sequence_parts.hpp in the source. Nothing of the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "conformance/cases/model_parts.hpp"
#include "reference/models/data.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

bool is_sequence(const std::string& model);
// S of a model's name: 4 of ulysses4, 1 of every model whose sequences are whole.
int sequence_parts_of(const std::string& model);

std::shared_ptr<reference::Model> make_sequence(int parts, uint64_t seed);
reference::Batch sequence_batch(const reference::Data& data, const reference::Draw& draw);

}  // namespace equigrad::conformance
