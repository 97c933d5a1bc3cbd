// LocalAttention: attention of whole sequences and this rank's heads, as parallel's
// DistributedAttention calls it, and its mask.
//
// Invariants: a token sees what is before it, without the padding, and itself.
// Shapes: heads [B, C, heads, width], those of queries a multiple of the others; a mask [B or 1, 1,
// C, C], true where a key is not seen.
// Errors: none.   Depends on: torch.
#pragma once

#include <ATen/core/Tensor.h>

namespace equigrad::conformance {

at::Tensor local_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& mask);
// Of the whole sequence, not of a part: later tokens are hidden, and where there is padding every
// fourth byte from all but itself.   [B, C]
at::Tensor mask_of(const at::Tensor& tokens, bool has_padding);

}  // namespace equigrad::conformance
