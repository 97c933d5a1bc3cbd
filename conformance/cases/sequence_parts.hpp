// SequenceParts: what the S ranks of a sequence group do together, all of them on one device, in
// plain torch: for networks that they compute (sequence_model.hpp, gated_model.hpp).
//
//   attention     S groups of heads, each of the whole sequence. A key/value head that R groups
//                 share is taken R times; its gradient is the sum of R (model_parts.hpp)
//   hidden_from   a token sees what is before it, without the padding, and itself
//   next_labels   each label at the place before it; the last place does not count
//
// Invariants: parts are contiguous copies in their own shapes; what is traded keeps its bits. One
// part is the ordinary computation.
// Shapes: heads [B, positions, heads, width], those of queries a multiple of those of keys and
// values; a mask [B, 1, C, C], true where a key is not seen.
// Errors: none of its own.
// Depends on: model_parts.hpp; torch's autograd functions in the source. Nothing of the engine's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace equigrad::conformance {

// Part `part` of `parts` along dimension 1.
at::Tensor piece_of(const at::Tensor& whole, int64_t part, int64_t parts);

struct PartsOfHeads {
  std::vector<at::Tensor> queries, keys, values;  // by part of the sequence
};
// By part of the sequence.
std::vector<at::Tensor> attention_of_parts(const PartsOfHeads& heads, const at::Tensor& mask);

// Of tokens [B, C]: every fourth number is padding, where there is any.
at::Tensor hidden_from(const at::Tensor& tokens, bool has_padding = true);
at::Tensor next_labels(const at::Tensor& labels);

}  // namespace equigrad::conformance
