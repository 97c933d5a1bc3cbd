// Split layers: their parts are those of the unsplit layer, and what they compute is its twin's:
// the same parts on one process, added in the tree.
#include "engine/parallel/layers.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cmath>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/error_of.hpp"
#include "conformance/testing/group_test.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/parallel/split_marks.hpp"

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

at::Tensor numbers(at::IntArrayRef shape, uint64_t seed) {
  return sample(c10::multiply_integers(shape), seed, at::kFloat).view(shape);
}

TEST(Layers, BeginAsTheUnsplitOnesOfTheFirstRank) {
  on_groups([](const Group& group) {
    const auto rank = group->rank(), size = group->world_size();
    const auto seed = [](uint64_t of) { torch::manual_seed(of); };
    seed(5);
    const torch::nn::Linear linear(12, 8);
    const torch::nn::Embedding entries(16, 3);
    seed(rank == 0 ? 5 : 6);
    const ColumnLinear column(12, 8, group);
    const Embedding embedding(16, 3, group);
    seed(rank == 0 ? 5 : 6);
    const RowLinear row(12, 8, group);
    const auto out = unpacked({8, 12}, 0), in = unpacked({8, 12}, 1);
    EXPECT_THAT(column->weight, HasTheBitsOf(part_of(linear->weight, out, rank, size)));
    EXPECT_THAT(column->bias, HasTheBitsOf(part_of(linear->bias, bias_split(out), rank, size)));
    EXPECT_THAT(row->weight, HasTheBitsOf(part_of(linear->weight, in, rank, size)));
    EXPECT_THAT(embedding->weight,
                HasTheBitsOf(part_of(entries->weight, unpacked({16, 3}, 0), rank, size)));
    EXPECT_EQ(split_of(column->weight), out);
    EXPECT_EQ(split_of(column->bias), bias_split(out));
    EXPECT_EQ(split_of(row->weight), in);
    EXPECT_EQ(split_of(row->bias), std::nullopt) << "it is whole";
    EXPECT_EQ(split_of(embedding->weight), unpacked({16, 3}, 0));
    EXPECT_TRUE(column->weight.requires_grad() && row->weight.requires_grad());
  });
}

// By slices of this test's own.
TEST(Layers, APackedColumnIsCutByItsMatricesAndSoIsItsBias) {
  on_groups([](const Group& group) {
    const std::vector<int64_t> segments = {16, 4, 4};
    torch::manual_seed(5);
    const torch::nn::Linear linear(6, 24);
    torch::manual_seed(5);
    const ColumnLinear column(6, 24, group, /*with_bias=*/true, segments);
    const auto own = [&](const at::Tensor& whole) {
      std::vector<at::Tensor> parts;
      int64_t begin = 0;
      for (const int64_t outputs : segments) {
        const int64_t mine = outputs / group->world_size();
        parts.push_back(whole.narrow(0, begin + group->rank() * mine, mine));
        begin += outputs;
      }
      return at::cat(parts);
    };
    EXPECT_THAT(column->weight, HasTheBitsOf(own(linear->weight)));
    EXPECT_THAT(column->bias, HasTheBitsOf(own(linear->bias)));
  });
}

// The twin of a row: parts of all ranks on one process, added in the tree, the bias once.
TEST(Layers, ARowAddsThePartsInTheTreeAndItsBiasOnce) {
  on_groups([](const Group& group) {
    const int64_t size = group->world_size();
    const auto input = numbers({5, 8}, 1), weight = numbers({3, 8}, 2), bias = numbers({3}, 3);
    const auto cut_in = unpacked({5, 8}, 1), cut = unpacked({3, 8}, 1);
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < size; ++rank)
      parts.push_back(
          at::linear(part_of(input, cut_in, rank, size), part_of(weight, cut, rank, size))
              .view({-1}));
    const auto expected = sum_of_tree(parts).view({5, 3}) + bias;
    const auto leaf = bias.clone().requires_grad_();
    const auto got = row_linear(part_of(input, cut_in, group->rank(), size),
                                part_of(weight, cut, group->rank(), size), leaf, group);
    EXPECT_THAT(got.detach(), HasTheBitsOf(expected));
    const auto gradient = numbers({5, 3}, 4);
    got.backward(gradient);
    EXPECT_THAT(leaf.grad(), HasTheBitsOf(gradient.sum(0))) << "not once for every rank";
  });
}

TEST(Layers, AColumnsInputGradientIsTheSumOfParts) {
  on_groups([](const Group& group) {
    const int64_t size = group->world_size();
    const auto input = numbers({5, 6}, 1), weight = numbers({8, 6}, 2), grad = numbers({5, 8}, 3);
    const auto cut = unpacked({8, 6}, 0), cut_out = unpacked({5, 8}, 1);
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < size; ++rank)
      parts.push_back(
          at::linear(part_of(grad, cut_out, rank, size), part_of(weight, cut, rank, size).t())
              .view({-1}));
    const auto leaf = input.clone().requires_grad_();
    const auto out = column_linear(leaf, part_of(weight, cut, group->rank(), size), {}, group);
    EXPECT_THAT(out.detach(),
                HasTheBitsOf(at::linear(input, part_of(weight, cut, group->rank(), size))));
    out.backward(part_of(grad, cut_out, group->rank(), size));
    EXPECT_THAT(leaf.grad(), HasTheBitsOf(sum_of_tree(parts).view({5, 6})));
  });
}

// Zeros of either sign stay what they are.
TEST(Layers, AnEmbeddingIsTheUnsplitOneBitForBit) {
  on_groups([](const Group& group) {
    const int64_t size = group->world_size();
    auto weight = numbers({8, 3}, 1);
    weight[2].fill_(-0.0F);
    weight[5].fill_(0.0F);
    const auto indices = at::tensor({7, 0, 2, 5, 2, 3, 1}, at::kLong).view({7, 1});
    const auto whole = weight.clone().requires_grad_();
    const auto part =
        part_of(weight, unpacked({8, 3}, 0), group->rank(), size).clone().requires_grad_();
    const auto expected = at::embedding(whole, indices);
    const auto got = embedding(indices, part, group);
    EXPECT_THAT(got.detach(), HasTheBitsOf(expected.detach()));
    const auto gradient = numbers({7, 1, 3}, 2);
    expected.backward(gradient);
    got.backward(gradient);
    EXPECT_THAT(part.grad(),
                HasTheBitsOf(part_of(whole.grad(), unpacked({8, 3}, 0), group->rank(), size)));
  });
}

TEST(Layers, AnEmbeddingsPaddingHasNoGradient) {
  on_groups([](const Group& group) {
    const int64_t size = group->world_size();
    const auto weight = numbers({8, 3}, 1), gradient = numbers({7, 1, 3}, 2);
    const auto indices = at::tensor({7, 0, 2, 5, 2, 3, 0}, at::kLong).view({7, 1});
    for (const int64_t padding : {0, 5}) {
      const auto whole = weight.clone().requires_grad_();
      const auto part =
          part_of(weight, unpacked({8, 3}, 0), group->rank(), size).clone().requires_grad_();
      at::embedding(whole, indices, padding).backward(gradient);
      const auto got = embedding(indices, part, group, padding);
      EXPECT_THAT(got.detach(), HasTheBitsOf(at::embedding(weight, indices)));
      got.backward(gradient);
      EXPECT_THAT(part.grad(),
                  HasTheBitsOf(part_of(whole.grad(), unpacked({8, 3}, 0), group->rank(), size)));
    }
  });
}

// Off at most by what its sums and functions round: of `entries` additions of positive numbers, and
// of 8 operations and functions that are each within 2 ulp.
double room(int64_t entries) { return static_cast<double>(entries + 16) * std::ldexp(1.0, -23); }

TEST(Layers, TheCrossEntropyOfSplitLogits) {
  on_groups([](const Group& group) {
    const int64_t size = group->world_size(), entries = 16;
    const auto logits = numbers({6, entries}, 1).mul(3);
    const auto targets = at::tensor({3, 0, 15, -100, 8, 7}, at::kLong);
    const auto exact = logits.to(at::kDouble).requires_grad_();
    const auto expected = at::cross_entropy_loss(exact, targets);
    expected.backward();
    const auto cut = unpacked({6, entries}, 1);
    const auto part = part_of(logits, cut, group->rank(), size).clone().requires_grad_();
    const auto got = cross_entropy(part, targets, group);
    got.backward();
    EXPECT_LE(std::abs(got.item<double>() - expected.item<double>()),
              room(entries) * (1 + expected.item<double>()));
    const auto want = part_of(exact.grad(), cut, group->rank(), size);
    const auto off = (part.grad().to(at::kDouble) - want).abs();
    // Of a target's element 1 is taken away: what rounds is the probability, at most 1 / 5 here.
    EXPECT_TRUE(off.le(room(entries) / 5).all().item<bool>()) << off;
    EXPECT_TRUE(part.grad()[3].eq(0).all().item<bool>()) << "an ignored row has no gradient";
    // The same on every rank, and with logits that differ by far.
    const auto far = part_of(logits.mul(1000), cut, group->rank(), size);
    EXPECT_TRUE(cross_entropy(far, targets, group).isfinite().item<bool>());
    EXPECT_THAT(sum_over(got.detach().view({1}), group),
                HasTheBitsOf(got.detach().view({1}) * size));
  });
}

// Logits of which two are largest, in parts of two ranks, and all others are so far below them that
// nothing of theirs is left: every sum is exact.
TEST(Layers, TheCrossEntropyHasTheBitsOfTorchWhereSumsAreExact) {
  on_groups([](const Group& group) {
    const int64_t size = group->world_size(), entries = 16;
    const auto logits = at::full({4, entries}, -4096.0F);
    const int64_t first[] = {3, 0, 7, 5};
    for (int64_t row = 0; row < 4; ++row)
      for (const int64_t entry : {first[row], first[row] + 8}) logits[row][entry].fill_(1024);
    const auto targets = at::tensor({3, 15, -100, 13}, at::kLong);
    const auto cut = unpacked({4, entries}, 1);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const auto whole = logits.to(type).clone().requires_grad_();
      const auto part = part_of(whole.detach(), cut, group->rank(), size).clone().requires_grad_();
      const auto expected = at::cross_entropy_loss(whole.to(at::kFloat), targets);
      const auto got = cross_entropy(part, targets, group);
      EXPECT_THAT(got.detach(), HasTheBitsOf(expected.detach()));
      expected.backward();
      got.backward();
      EXPECT_THAT(part.grad(), HasTheBitsOf(part_of(whole.grad(), cut, group->rank(), size)));
      const auto rows = cross_entropy_by_row(part, targets, group).detach();
      EXPECT_THAT(rows, HasTheBitsOf(at::cross_entropy_loss(whole.detach().to(at::kFloat), targets,
                                                            {}, at::Reduction::None)));
    }
  });
}

TEST(Layers, ATargetThatIsNoEntryIsRefused) {
  on_groups([](const Group& group) {
    const auto part = numbers({2, 16 / group->world_size()}, 1);
    const auto said = [&](int64_t target) {
      return error_of([&] {
        cross_entropy(part, at::tensor({int64_t{3}, target}, at::kLong), group, -5);
      });
    };
    EXPECT_THAT(said(16), HasSubstr("from 0 to 15, or -5 for one that is ignored, got 16"));
    EXPECT_THAT(said(-100), HasSubstr("got -100"));
    EXPECT_EQ(said(-5), "");
  });
}

TEST(Layers, WhatTheGroupDoesNotDivideIsRefused) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto group = context.group();
                       EXPECT_THAT(error_of([&] { ColumnLinear(4, 5, group); }), HasSubstr("5"));
                       EXPECT_THAT(error_of([&] { RowLinear(7, 4, group); }), HasSubstr("7"));
                       EXPECT_THAT(error_of([&] { Embedding(9, 4, group); }), HasSubstr("9"));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::parallel
