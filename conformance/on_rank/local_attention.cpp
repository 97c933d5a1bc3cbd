#include "conformance/on_rank/local_attention.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

namespace equigrad::conformance {

at::Tensor local_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& mask) {
  constexpr auto kNever = -std::numeric_limits<double>::infinity();
  const auto heads_of = [&](const at::Tensor& shared) {
    return shared.transpose(1, 2).repeat_interleave(query.size(2) / shared.size(2), 1);
  };
  auto scores = at::matmul(query.transpose(1, 2), heads_of(key).transpose(-2, -1));
  scores = scores / std::sqrt(static_cast<double>(query.size(3)));
  const auto weights = at::softmax(scores.masked_fill(mask, kNever), -1);
  return at::matmul(weights, heads_of(value)).transpose(1, 2);
}

at::Tensor mask_of(const at::Tensor& tokens, bool has_padding) {
  const auto place = at::arange(tokens.size(1), tokens.device());
  const auto asking = place.unsqueeze(1), asked = place.unsqueeze(0);
  const auto is_later = asked.gt(asking);
  if (!has_padding) return is_later.unsqueeze(0).unsqueeze(0);
  const auto is_padding = tokens.remainder(4).eq(0).unsqueeze(1);  // [B, 1, C]
  return is_later.logical_or(is_padding.logical_and(asked.ne(asking))).unsqueeze(1);
}

}  // namespace equigrad::conformance
