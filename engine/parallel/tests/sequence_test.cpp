// Parts of a sequence: what is cut where, and a loss of which the ranks' gradients add up.
#include "engine/parallel/sequence.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

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
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using ::testing::HasSubstr;

at::Tensor cut(const at::Tensor& whole, int64_t dimension, const Group& group) {
  return whole.chunk(group->world_size(), dimension)[static_cast<std::size_t>(group->rank())];
}

at::Tensor longs(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

TEST(Sequence, LabelsAreShiftedInTheWholeSequence) {
  const auto tokens = longs({1, 2, 3, 4, 5, 6, 7, 8}).view({1, 8});
  EXPECT_TRUE(next_tokens(tokens).equal(longs({2, 3, 4, 5, 6, 7, 8, -100}).view({1, 8})));
  on_groups([&](const Group& group) {
    const auto part = split_batch({.tokens = tokens, .labels = tokens, .positions = {}}, group);
    EXPECT_TRUE(part.tokens.equal(cut(tokens, 1, group)));
    EXPECT_TRUE(part.positions.equal(cut(tokens - 1, 1, group))) << "of the whole sequence";
    EXPECT_TRUE(part.targets.equal(cut(longs({2, 3, 4, 5, 6, 7, 8, -100}).view({1, 8}), 1, group)));
    const auto packed = longs({0, 1, 2, 0, 1, 0, 1, 2}).view({1, 8});
    EXPECT_TRUE(split_batch({.tokens = tokens, .labels = {}, .positions = packed}, group)
                    .positions.equal(cut(packed, 1, group)));
  });
}

TEST(Sequence, OtherTokensOnARankAreNamed) {
  EXPECT_EQ(on_ranks(4,
                     [](RankContext& context) {
                       auto tokens = at::arange(8).view({1, 8});
                       const auto said = [&] {
                         return error_of([&] {
                           split_batch({.tokens = tokens, .labels = {}, .positions = {}},
                                       context.group());
                         });
                       };
                       EXPECT_EQ(said(), "");
                       if (context.rank() == 2) tokens[0][7] += int64_t{1} << 40;
                       EXPECT_THAT(said(), HasSubstr("got others on rank 2 than on rank 0"));
                       if (context.rank() == 3) tokens = tokens.narrow(1, 0, 4);
                       EXPECT_THAT(said(), HasSubstr("got others on ranks 2, 3 than on rank 0"));
                       tokens = at::arange(6).view({1, 6});
                       EXPECT_THAT(said(), HasSubstr("got 6 positions. Pad it to 8"));
                     }),
            "");
}

// Tokens that count: most on the first rank, none on the last.
at::Tensor uneven_targets() {
  return longs({3, 1, 0, 2, -100, 1, -100, -100, 2, 3, 1, 1, -100, -100, -100, -100}).view({2, 8});
}

TEST(Sequence, TheMeanIsOverAllTokensThatCount) {
  on_groups([](const Group& group) {
    const auto logits = sample(2 * 8 * 4, 1).view({2, 8, 4});
    const auto targets = uneven_targets();
    std::vector<at::Tensor> sums;
    for (const auto& part : logits.chunk(group->world_size(), 1)) {
      const auto place = sums.size();
      const auto of = targets.chunk(group->world_size(), 1)[place];
      sums.push_back(
          at::cross_entropy_loss(part.reshape({-1, 4}), of.reshape({-1}), {}, at::Reduction::Sum));
    }
    const auto whole = logits.clone().requires_grad_();
    at::cross_entropy_loss(whole.view({-1, 4}), targets.view({-1})).backward();
    const auto part = cut(logits, 1, group).clone().requires_grad_();
    const auto loss = sequence_cross_entropy(part, cut(targets, 1, group), group);
    EXPECT_THAT(loss.detach().view({1}), HasTheBitsOf((sum_of_tree(sums) / 9.0).view({1})));
    loss.backward();
    EXPECT_THAT(part.grad(), HasTheBitsOf(cut(whole.grad(), 1, group).contiguous()));
  });
}

// A parameter that every rank has: the sum of the ranks' gradients is that of the whole mean. Whole
// numbers, of which 8 count.
TEST(Sequence, GradientsOfTheRanksAddUp) {
  on_groups([](const Group& group) {
    const auto inputs = at::arange(16).remainder(5).sub(2).to(at::kFloat).view({2, 8});
    const auto counts = longs({1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0}).view({2, 8});
    const auto whole = at::full({1}, 3.0F).requires_grad_();
    ((inputs * whole * counts).sum() / 8).backward();
    const auto weight = at::full({1}, 3.0F).requires_grad_();
    const auto own = cut(counts, 1, group);
    sequence_mean((cut(inputs, 1, group) * weight * own).sum(), own.sum(), group).backward();
    EXPECT_THAT(sum_over(weight.grad(), group), HasTheBitsOf(whole.grad()));
  });
}

TEST(Sequence, NoTokenThatCountsIsTorchsMean) {
  on_groups([](const Group& group) {
    const auto targets = at::full({1, 2}, kIgnoredTarget, at::kLong);
    EXPECT_TRUE(std::isnan(
        sequence_cross_entropy(sample(8, 1).view({1, 2, 4}), targets, group).item<float>()));
  });
}

TEST(Sequence, ShapesThatDoNotFitAreRefused) {
  const auto logits = sample(32, 1).view({2, 4, 4});
  EXPECT_THAT(error_of([&] {
                sequence_cross_entropy(logits, longs({1, 2}), nullptr);
              }),
              HasSubstr("got [2, 4, 4] and [2]"));
  EXPECT_THAT(error_of([&] { sequence_mean(logits, longs({1}), nullptr); }), HasSubstr("got 32"));
}

}  // namespace
}  // namespace equigrad::parallel
