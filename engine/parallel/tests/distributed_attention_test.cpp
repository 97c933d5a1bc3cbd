// Attention over a split sequence: on every rank its part of what one process computes by heads.
#include "engine/parallel/distributed_attention.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/error_of.hpp"
#include "conformance/testing/group_test.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"

namespace equigrad::parallel {
namespace {

using conformance::error_of;
using conformance::on_groups;
using conformance::sample;
using conformance::sum_of_tree;
using conformance::whole_numbers;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using ::testing::HasSubstr;

struct Shape {
  int64_t heads = 8, key_value_heads = 8;
  int64_t queries = 16, keys = 16;  // lengths
};

// [2, length, heads, 8]
at::Tensor numbers(int64_t length, int64_t heads, uint64_t seed, at::ScalarType type) {
  return (sample(2 * length * heads * 8, seed, at::kFloat).view({2, length, heads, 8}) * 0.125)
      .to(type);
}

Attended whole_of(const Shape& shape, at::ScalarType type = at::kFloat) {
  return {numbers(shape.queries, shape.heads, 1, type),
          numbers(shape.keys, shape.key_value_heads, 2, type),
          numbers(shape.keys, shape.key_value_heads, 3, type)};
}

// As models do it: heads first, key/value heads once for each query head.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  bool causal) {
  const auto laid_out = [](const at::Tensor& tensor) { return tensor.transpose(1, 2); };
  return at::scaled_dot_product_attention(laid_out(query), laid_out(key), laid_out(value), {}, 0.0,
                                          causal, {}, query.size(2) != key.size(2))
      .transpose(1, 2);
}

Attended leaves(const Attended& of) {
  const auto leaf = [](const at::Tensor& tensor) {
    return tensor.detach().clone().requires_grad_();
  };
  return {leaf(of.query), leaf(of.key), leaf(of.value)};
}

at::Tensor cut(const at::Tensor& whole, int64_t dimension, const Group& group) {
  return whole.chunk(group->world_size(), dimension)[static_cast<std::size_t>(group->rank())];
}

struct Computed {
  at::Tensor output;
  Attended gradients;
};

Computed computed(const Attended& of, const at::Tensor& gradient,
                  const std::function<at::Tensor(const Attended&)>& attention) {
  const auto held = leaves(of);
  const auto output = attention(held);
  output.backward(gradient);
  return {output.detach(), {held.query.grad(), held.key.grad(), held.value.grad()}};
}

// On one process: each rank's heads by themselves; gradients of a head that several have, in the
// tree.
Computed twin(const Attended& whole, const at::Tensor& gradient, bool causal, int64_t ranks) {
  const int64_t heads = whole.key.size(2), copies = heads < ranks ? ranks / heads : 1;
  std::vector<at::Tensor> outputs, queries, keys, values;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto some = [&](const at::Tensor& of, int64_t shared) {
      const int64_t each = std::max<int64_t>(of.size(2) / ranks, 1);
      return of.narrow(2, rank / shared * each, each);
    };
    const auto part =
        computed({some(whole.query, 1), some(whole.key, copies), some(whole.value, copies)},
                 some(gradient, 1),
                 [&](const Attended& of) { return attend(of.query, of.key, of.value, causal); });
    outputs.push_back(part.output);
    queries.push_back(part.gradients.query);
    keys.push_back(part.gradients.key);
    values.push_back(part.gradients.value);
  }
  const auto shared = [&](const std::vector<at::Tensor>& rows) {
    std::vector<at::Tensor> sums;
    for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(copies)) {
      const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(at);
      sums.push_back(sum_of_tree({begin, begin + copies}).to(rows[0].scalar_type()));
    }
    return at::cat(sums, 2);
  };
  return {at::cat(outputs, 2), {at::cat(queries, 2), shared(keys), shared(values)}};
}

Computed split(const Attended& whole, const at::Tensor& gradient, bool causal, const Group& group) {
  DistributedAttention attention(attend, group);
  const Attended part{cut(whole.query, 1, group), cut(whole.key, 1, group),
                      cut(whole.value, 1, group)};
  return computed(part, cut(gradient, 1, group), [&](const Attended& of) {
    return attention(of.query, of.key, of.value, causal);
  });
}

void expect_part_of(const Computed& got, const Computed& whole, const Group& group) {
  EXPECT_THAT(got.output, HasTheBitsOf(cut(whole.output, 1, group).contiguous()));
  EXPECT_THAT(got.gradients.query, HasTheBitsOf(cut(whole.gradients.query, 1, group).contiguous()));
  EXPECT_THAT(got.gradients.key, HasTheBitsOf(cut(whole.gradients.key, 1, group).contiguous()));
  EXPECT_THAT(got.gradients.value, HasTheBitsOf(cut(whole.gradients.value, 1, group).contiguous()));
}

TEST(DistributedAttention, IsTheWholeOneByHeads) {
  on_groups([](const Group& group) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const bool causal : {false, true}) {
        for (const int64_t key_value_heads : {8, 4}) {
          const auto whole = whole_of({.key_value_heads = key_value_heads}, type);
          const auto gradient = numbers(16, 8, 4, type);
          const auto got = split(whole, gradient, causal, group);
          expect_part_of(got, twin(whole, gradient, causal, group->world_size()), group);
          expect_part_of(got,
                         computed(whole, gradient,
                                  [&](const Attended& of) {
                                    return attend(of.query, of.key, of.value, causal);
                                  }),
                         group);
        }
      }
    }
  });
}

TEST(DistributedAttention, AHeadOfSeveralRanksAddsTheirGradientsInTheTree) {
  on_groups([](const Group& group) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t key_value_heads : {1, 2}) {
        const auto whole = whole_of({.key_value_heads = key_value_heads}, type);
        const auto gradient = numbers(16, 8, 4, type);
        expect_part_of(split(whole, gradient, true, group),
                       twin(whole, gradient, true, group->world_size()), group);
      }
    }
  });
}

TEST(DistributedAttention, KeysAndValuesOfAnotherSequence) {
  on_groups([](const Group& group) {
    const auto whole = whole_of({.keys = 24});
    const auto gradient = numbers(16, 8, 4, at::kFloat);
    expect_part_of(split(whole, gradient, false, group),
                   twin(whole, gradient, false, group->world_size()), group);
  });
}

// Without a softmax every sum is exact, so it is the unsplit one whatever is split, and a head that
// is forgotten or taken twice is seen. In any layout; what is given beside goes to the attention.
TEST(DistributedAttention, OfWholeNumbersIsTheUnsplitOne) {
  on_groups([](const Group& group) {
    for (const AttentionDimensions at : {AttentionDimensions{2, 1}, {1, 2}, {-2, 0}, {2, 0}}) {
      for (const int64_t key_value_heads : {1, 2, 4, 8}) {
        const auto laid_out = [&](const at::Tensor& of) {  // from [2, length, heads, 3]
          return at.sequence == 2 ? of.transpose(1, 2) : at.sequence == 0 ? of.transpose(0, 1) : of;
        };
        const auto linear = [&](const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const at::Tensor& weights) {
          const auto heads = [&](const at::Tensor& of) {  // [2, heads, length, 3]
            const auto first = laid_out(of).transpose(1, 2);
            return first.repeat_interleave(query.size(at.heads < 0 ? 2 : at.heads) / first.size(1),
                                           1);
          };
          const auto scores = at::matmul(heads(query), heads(key).transpose(2, 3)) * weights;
          return laid_out(at::matmul(scores, heads(value)).transpose(1, 2));
        };
        const Attended whole{laid_out(whole_numbers({2, 8, 8, 3}, 1)),
                             laid_out(whole_numbers({2, 8, key_value_heads, 3}, 2)),
                             laid_out(whole_numbers({2, 8, key_value_heads, 3}, 3))};
        const auto gradient = laid_out(whole_numbers({2, 8, 8, 3}, 4));
        const auto weights = whole_numbers({8, 8}, 5);
        const auto want = computed(whole, gradient, [&](const Attended& of) {
          return linear(of.query, of.key, of.value, weights);
        });
        DistributedAttention attention(linear, group, at.heads, at.sequence);
        const Attended part{cut(whole.query, at.sequence, group),
                            cut(whole.key, at.sequence, group),
                            cut(whole.value, at.sequence, group)};
        const auto got = computed(part, cut(gradient, at.sequence, group), [&](const Attended& of) {
          return attention(of.query, of.key, of.value, weights);
        });
        const auto same = [&](const at::Tensor& one, const at::Tensor& other) {
          EXPECT_THAT(one.contiguous(), HasTheBitsOf(cut(other, at.sequence, group).contiguous()));
        };
        same(got.output, want.output);
        same(got.gradients.query, want.gradients.query);
        same(got.gradients.key, want.gradients.key);
        same(got.gradients.value, want.gradients.value);
      }
    }
  });
}

TEST(DistributedAttention, WithoutAGroupIsTheLocalOne) {
  const auto whole = whole_of({.heads = 3, .key_value_heads = 3});
  DistributedAttention attention(attend, nullptr);
  EXPECT_THAT(attention(whole.query, whole.key, whole.value, true),
              HasTheBitsOf(attend(whole.query, whole.key, whole.value, true)));
}

TEST(DistributedAttention, RefusesHeadsThatRanksDoNotDivide) {
  EXPECT_EQ(
      on_ranks(4,
               [](RankContext& context) {
                 const auto said = [&](int64_t heads, int64_t key_value_heads) {
                   const auto part = whole_of({.heads = heads, .key_value_heads = key_value_heads});
                   DistributedAttention attention(attend, context.group());
                   return error_of([&] { attention(part.query, part.key, part.value, true); });
                 };
                 EXPECT_THAT(said(6, 6), HasSubstr("got 6 query heads and 6 key/value heads "
                                                   "on 4 ranks"));
                 EXPECT_THAT(said(12, 6), HasSubstr("got 12 query heads and 6 key/value"));
                 EXPECT_THAT(said(12, 3), HasSubstr("a number of them that divides"));
                 EXPECT_THAT(said(8, 3), HasSubstr("as many query heads for each"));
                 const auto part = whole_of({});
                 DistributedAttention wrong([](const at::Tensor& query, const at::Tensor&,
                                               const at::Tensor&) { return query.transpose(1, 2); },
                                            context.group());
                 EXPECT_THAT(error_of([&] { wrong(part.query, part.key, part.value); }),
                             HasSubstr("an output with the 2 heads of its queries at 2"));
                 DistributedAttention uneven(attend, context.group());
                 EXPECT_THAT(error_of([&] {
                               uneven(part.query, part.key, part.value.narrow(1, 0, 8), true);
                             }),
                             HasSubstr("the same sequence at 1"));
               }),
      "");
}

}  // namespace
}  // namespace equigrad::parallel
