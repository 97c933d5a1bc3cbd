// GroupTest: what tests of groups of ranks have in common.
//
// Invariants: whole_numbers() and small_numbers() are integers, so that sums of their products are
// exact in any order.
// Shapes: as asked for, fp32.
// Errors: on_groups() fails the test for what any rank expects in vain.
// Depends on: rank_test.hpp.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "conformance/testing/rank_test.hpp"

namespace equigrad::conformance {

// On every rank of a group of 2, and of one of 4.
inline void on_groups(
    const std::function<void(const std::shared_ptr<comm::Communicator>& group)>& test) {
  for (const int world : {2, 4})
    EXPECT_EQ(ranks::on_ranks(world, [&](ranks::RankContext& context) { test(context.group()); }),
              "");
}

// From -largest to largest; another seed gives others.
inline at::Tensor whole_numbers(at::IntArrayRef shape, int64_t seed, int64_t largest = 2) {
  const auto count = c10::multiply_integers(shape);
  return (at::arange(count) * (7 + seed) + seed)
      .remainder(2 * largest + 1)
      .sub(largest)
      .to(at::kFloat)
      .view(shape);
}

// From -1 to 1.
inline at::Tensor small_numbers(at::IntArrayRef shape, int64_t seed) {
  return whole_numbers(shape, seed, /*largest=*/1);
}

// Without a softmax, so that sums are exact.   [batch, length, heads, width]
inline at::Tensor linear_attention(const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value) {
  const auto heads = [&](const at::Tensor& of) {
    return of.transpose(1, 2).repeat_interleave(query.size(2) / of.size(2), 1);
  };
  const auto scores = at::matmul(heads(query), heads(key).transpose(2, 3)).tril();
  return at::matmul(scores, heads(value)).transpose(1, 2);
}

}  // namespace equigrad::conformance
