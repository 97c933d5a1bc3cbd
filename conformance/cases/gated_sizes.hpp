// GatedSizes: what the gated network has of everything, and how many ranks compute it; what is not
// said otherwise is that of gated, gated2, gated4, gated2x2 and dropout2 of the matrix.
//
// Invariants: T divides vocabulary, hidden and key_heads; key_heads divides heads; S divides
// context and heads / T, and of S and key_heads / T one divides the other.
// Units: counts.   Errors: none.   Depends on: the C++ standard library only.
#pragma once

#include <cstdint>
#include <string>

namespace equigrad::conformance {

struct GatedSizes {
  int64_t tensor = 1, sequence = 1;  // T and S
  int64_t vocabulary = 64, context = 8, features = 16, hidden = 24;
  int64_t heads = 8, key_heads = 4, width = 4, layers = 1;
  bool is_tied = true;  // the head has the weight of token
  bool has_qkv_bias = true;
  bool splits_loss = true;     // it is of logits that are split; else they are put together first
  bool shifts_labels = false;  // targets are labels, each of its own token
  bool has_padding = false;    // every fourth token, which no other sees
  bool has_spare = false;      // a column that is used by no pass
  bool drops_out = false;      // half of what is in parts, and of what rows give; S is 1
  std::string frozen = {};     // what the names of parameters have that are; empty: none is
};

}  // namespace equigrad::conformance
