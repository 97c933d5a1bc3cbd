// A region and its transpose: on every rank what one process computes of all ranks' tensors.
#include "engine/parallel/regions.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>
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
using conformance::sample;
using conformance::sum_of_tree;
using conformance::whole_numbers;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using ::testing::HasSubstr;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

// What one rank of a group has, and what all of them have.
struct Of {
  Group group;
  at::ScalarType type;
  int64_t size() const { return group->world_size(); }
  int64_t rank() const { return group->rank(); }
  at::Tensor tensor(int64_t of_rank, at::IntArrayRef shape, uint64_t seed = 0) const {
    return sample(c10::multiply_integers(shape), seed + static_cast<uint64_t>(of_rank) * 7 + 1,
                  type)
        .view(shape);
  }
  at::Tensor leaf(at::IntArrayRef shape, uint64_t seed = 0) const {
    return tensor(rank(), shape, seed).clone().requires_grad_();
  }
  at::Tensor sum(at::IntArrayRef shape, uint64_t seed = 0) const {
    std::vector<at::Tensor> rows;
    for (int64_t of = 0; of < size(); ++of) rows.push_back(tensor(of, shape, seed).view({-1}));
    return sum_of_tree(rows).to(type).view(shape);
  }
};

void for_each_group(const std::function<void(const Of&)>& test) {
  for (const int world : {2, 3, 4})
    EXPECT_EQ(on_ranks(world,
                       [&](RankContext& context) {
                         for (const auto type : kTypes) test({context.group(), type});
                       }),
              "");
}

TEST(Regions, CopyToGivesBackTheSum) {
  for_each_group([](const Of& of) {
    for (const int64_t columns : {1, 5, 64}) {
      const auto leaf = of.leaf({3, columns});
      const auto copied = copy_to(leaf, of.group);
      EXPECT_THAT(copied.detach(), HasTheBitsOf(leaf.detach()));
      copied.backward(of.tensor(of.rank(), {3, columns}, 1000));
      EXPECT_THAT(leaf.grad(), HasTheBitsOf(of.sum({3, columns}, 1000)));
    }
  });
}

TEST(Regions, ReduceFromIsTheSumAndGivesBackTheSame) {
  for_each_group([](const Of& of) {
    const auto leaf = of.leaf({4, 5});
    const auto before = leaf.detach().clone();
    const auto reduced = reduce_from(leaf, of.group);
    EXPECT_THAT(reduced.detach(), HasTheBitsOf(of.sum({4, 5})));
    EXPECT_THAT(leaf.detach(), HasTheBitsOf(before)) << "its input stays";
    const auto gradient = of.tensor(0, {4, 5}, 1000);
    reduced.backward(gradient);
    EXPECT_THAT(leaf.grad(), HasTheBitsOf(gradient));
  });
}

// As models do that add a residual in place.
TEST(Regions, WhatIsReducedMayBeWrittenInto) {
  for_each_group([](const Of& of) {
    const auto leaf = of.leaf({4, 5});
    auto reduced = reduce_from(leaf, of.group);
    reduced += of.tensor(0, {4, 5}, 2000);
    const auto gradient = of.tensor(0, {4, 5}, 1000);
    reduced.backward(gradient);
    EXPECT_THAT(leaf.grad(), HasTheBitsOf(gradient));
    EXPECT_THAT(reduced.detach(), HasTheBitsOf(of.sum({4, 5}).add(of.tensor(0, {4, 5}, 2000))));
  });
}

// Of two segments, each cut by itself.
TEST(Regions, ScatterAndGatherAreEachOthersTransposes) {
  for_each_group([](const Of& of) {
    const int64_t n = of.size();
    for (const Segments& segments : {Segments{}, Segments{2 * n, n}}) {
      const auto whole = of.tensor(0, {2, 3 * n, 2});
      auto split = unpacked(whole.sizes().vec(), 1);
      if (!segments.empty()) split.segments = segments;
      const auto leaf = whole.clone().requires_grad_();
      const auto part = scatter_to(leaf, 1, of.group, segments);
      EXPECT_THAT(part.detach(), HasTheBitsOf(part_of(whole, split, of.rank(), n)));
      part.backward(of.tensor(of.rank(), part.sizes(), 1000));
      std::vector<at::Tensor> gradients;
      for (int64_t rank = 0; rank < n; ++rank)
        gradients.push_back(of.tensor(rank, part.sizes(), 1000));
      EXPECT_THAT(leaf.grad(), HasTheBitsOf(whole_of(gradients, split)));

      const auto each = part.detach().clone().requires_grad_();
      const auto gathered = gather_from(each, -2, of.group, segments);
      EXPECT_THAT(gathered.detach(), HasTheBitsOf(whole));
      const auto gradient = of.tensor(0, whole.sizes(), 2000);
      gathered.backward(gradient);
      EXPECT_THAT(each.grad(), HasTheBitsOf(part_of(gradient, split, of.rank(), n)));
    }
  });
}

// Packed columns come back in the order of the whole.
TEST(Regions, PartsOfSegmentsAreInterleaved) {
  const auto whole = at::arange(8);
  const Split split{.dimension = 0, .segments = {4, 4}, .shape = {8}};
  EXPECT_TRUE(part_of(whole, split, 1, 2).equal(at::tensor({2, 3, 6, 7}, at::kLong)));
  EXPECT_TRUE(
      whole_of({part_of(whole, split, 0, 2), part_of(whole, split, 1, 2)}, split).equal(whole));
}

// [rows of a rank, heads] -> [all rows, heads of a rank], and back.
TEST(Regions, AllToAllTradesRowsForHeads) {
  for_each_group([](const Of& of) {
    const int64_t n = of.size();
    std::vector<at::Tensor> rows, gradients;
    for (int64_t rank = 0; rank < n; ++rank) {
      rows.push_back(of.tensor(rank, {3, 2 * n, 2}));
      gradients.push_back(of.tensor(rank, {3 * n, 2, 2}, 1000));
    }
    const auto leaf = of.leaf({3, 2 * n, 2});
    const auto heads = all_to_all(leaf, -2, 0, of.group);
    EXPECT_THAT(heads.detach(), HasTheBitsOf(at::cat(rows, 0).narrow(1, 2 * of.rank(), 2)));
    heads.backward(gradients[static_cast<std::size_t>(of.rank())]);
    EXPECT_THAT(leaf.grad(), HasTheBitsOf(at::cat(gradients, 1).narrow(0, 3 * of.rank(), 3)));
    EXPECT_THAT(all_to_all(heads, 0, 1, of.group).detach(), HasTheBitsOf(leaf.detach()));
  });
}

// Columns and rows of whole numbers: sums are exact, so the unsplit network's bits.
TEST(Regions, ATwoLayerNetworkOfWholeNumbersIsTheUnsplitOne) {
  for_each_group([](const Of& of) {
    const int64_t n = of.size(), hidden = 4 * n;
    const std::vector<Split> cuts{unpacked({hidden, 5}, 0), unpacked({3, hidden}, 1)};
    std::vector<at::Tensor> whole{whole_numbers({6, 5}, 1), whole_numbers({hidden, 5}, 2),
                                  whole_numbers({3, hidden}, 4)};
    std::vector<at::Tensor> part{whole[0].clone(), part_of(whole[1], cuts[0], of.rank(), n),
                                 part_of(whole[2], cuts[1], of.rank(), n)};
    for (auto* set : {&whole, &part})
      for (auto& one : *set) one.requires_grad_();
    const auto run = [](const std::vector<at::Tensor>& on, const Group& group) {
      const auto inner = at::relu(at::linear(copy_to(on[0], group), on[1]));
      return reduce_from(at::linear(inner, on[2]), group);
    };
    const auto expected = run(whole, nullptr), got = run(part, of.group);
    EXPECT_THAT(got.detach(), HasTheBitsOf(expected.detach()));
    const auto gradient = whole_numbers({6, 3}, 9);
    expected.backward(gradient);
    got.backward(gradient);
    EXPECT_THAT(part[0].grad(), HasTheBitsOf(whole[0].grad()));
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_THAT(part[i + 1].grad(),
                  HasTheBitsOf(part_of(whole[i + 1].grad(), cuts[i], of.rank(), n)));
  });
}

TEST(Regions, OneRankIsTheIdentity) {
  const auto x = sample(12, 1, at::kFloat).view({3, 4});
  EXPECT_TRUE(copy_to(x, nullptr).is_same(x));
  EXPECT_TRUE(reduce_from(x, nullptr).is_same(x));
  EXPECT_TRUE(scatter_to(x, 0, nullptr).is_same(x));
  EXPECT_TRUE(gather_from(x, 0, nullptr).is_same(x));
  EXPECT_TRUE(all_to_all(x, 0, 1, nullptr).is_same(x));
}

TEST(Regions, WhatDoesNotDivideIsRefusedByName) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto group = context.group();
                       const auto x = sample(15, 1, at::kFloat).view({3, 5});
                       EXPECT_THAT(error_of([&] { all_to_all(x, 0, 1, group); }),
                                   HasSubstr("multiple of the 2 ranks, got 3"));
                       EXPECT_THAT(error_of([&] { scatter_to(x, 1, group); }), HasSubstr("5"));
                       const auto leaf = x.clone().requires_grad_();
                       EXPECT_THAT(error_of([&] {
                                     torch::autograd::grad({copy_to(leaf, group).pow(2).sum()},
                                                           {leaf}, {}, true, true);
                                   }),
                                   HasSubstr("gradients of first order"));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::parallel
