// The pinned sums over ranks are the tree's, on every rank, however the buffer is cut.
#include "engine/comm/reduction.hpp"

#include <functional>

#include "conformance/faults/adversary.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::comm {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::sum_of_tree;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

at::Tensor of_rank(int rank, int64_t numel, at::ScalarType dtype) {
  return sample(numel, static_cast<uint64_t>(rank) + 100, dtype);
}

at::Tensor tree_over_ranks(int world, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> rows;
  for (int rank = 0; rank < world; ++rank) rows.push_back(of_rank(rank, numel, dtype));
  return sum_of_tree(rows);
}

at::Tensor pinned_all(Communicator& communicator, const at::Tensor& buffer, at::ScalarType result) {
  return Reduction::all_reduce_sum(communicator, ReductionOrder::Pinned, buffer.clone(), result)
      .finish();
}

// One rank's part of a sum of [W, n], as the buckets have it.
struct Sum {
  Communicator& group;
  int64_t rank, world, n;
  at::ScalarType dtype;
  at::Tensor mine() const { return of_rank(static_cast<int>(rank), world * n, dtype); }
  at::Tensor slice(const at::Tensor& whole) const { return whole.narrow(0, rank * n, n); }
};

void for_each_sum(const std::function<void(const Sum&)>& test) {
  for (const int world : {1, 2, 3, 4}) {
    EXPECT_EQ(
        on_ranks(world,
                 [&](RankContext& context) {
                   for (const int64_t n : {1, 5, 1023})
                     for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
                       test({*context.group(), context.rank(), context.world_size(), n, dtype});
                 }),
        "");
  }
}

TEST(Reduction, PinnedSumsAreTheTreeOverRanks) {
  for_each_sum([](const Sum& sum) {
    const auto tree = tree_over_ranks(static_cast<int>(sum.world), sum.world * sum.n, sum.dtype);
    for (const auto result : {at::kFloat, sum.dtype}) {
      const auto want = tree.to(result);
      const auto scatter = [&] {
        return Reduction::reduce_scatter_sum(sum.group, ReductionOrder::Pinned, sum.mine(), result);
      };
      EXPECT_THAT(pinned_all(sum.group, sum.mine(), result), HasTheBitsOf(want));
      EXPECT_THAT(scatter().finish(), HasTheBitsOf(sum.slice(want)));
      const auto block = at::empty({sum.n}, result);
      EXPECT_TRUE(scatter().finish(block).is_same(block));
      EXPECT_THAT(block, HasTheBitsOf(sum.slice(want)));
      const auto whole = at::empty({sum.world * sum.n}, result);
      EXPECT_TRUE(Reduction::all_reduce_sum(sum.group, ReductionOrder::Pinned, sum.mine(), result)
                      .finish(whole)
                      .is_same(whole));
      EXPECT_THAT(whole, HasTheBitsOf(want));
    }
  });
}

TEST(Reduction, PinnedSumsDoNotDependOnHowTheBufferIsCut) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       const auto mine = of_rank(context.rank(), 300, at::kFloat);
                       const auto whole = pinned_all(*context.group(), mine, at::kFloat);
                       for (const int64_t cut : {3, 90, 297}) {
                         const auto left =
                             pinned_all(*context.group(), mine.slice(0, 0, cut), at::kFloat);
                         const auto right =
                             pinned_all(*context.group(), mine.slice(0, cut), at::kFloat);
                         EXPECT_THAT(at::cat({left, right}), HasTheBitsOf(whole)) << cut;
                       }
                     }),
            "");
}

// 2^18 elements of a row are one piece. The adversary hands a gather's result over as late as it
// may, so that a piece whose gather was not waited for is seen.
TEST(Reduction, PinnedSumsOfSeveralPiecesAreTheTreeHoweverLateTheyCome) {
  for (const int world : {2, 3}) {
    EXPECT_EQ(
        on_ranks(world,
                 [](RankContext& context) {
                   const int w = context.world_size();
                   const int64_t numel = w * ((int64_t{3} << 18) + 5);
                   const auto mine = of_rank(context.rank(), numel, at::kFloat);
                   const auto want = tree_over_ranks(w, numel, at::kFloat);
                   for (uint64_t seed = 1; seed <= 3; ++seed) {
                     const auto late = conformance::faults::adversarial(context.group(), seed);
                     EXPECT_THAT(pinned_all(*late, mine, at::kFloat), HasTheBitsOf(want));
                     for (const auto result : {at::kFloat, at::kBFloat16}) {
                       auto scatter = Reduction::reduce_scatter_sum(*late, ReductionOrder::Pinned,
                                                                    mine.clone(), result);
                       EXPECT_THAT(
                           scatter.finish(),
                           HasTheBitsOf(
                               want.narrow(0, context.rank() * (numel / w), numel / w).to(result)));
                     }
                   }
                 }),
        "");
  }
}

// Two ranks that trade add what arrives to what lies in the buffer, which may be the sum's block.
TEST(Reduction, WhatTwoRanksTradePieceByPieceIsTheTree) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 auto& group = *context.group();
                 ASSERT_TRUE(group.trades());
                 const int64_t n = (int64_t{5} << 18) + 3;
                 for (const auto dtype : {at::kFloat, at::kBFloat16}) {
                   const auto mine = of_rank(context.rank(), 2 * n, dtype);
                   const auto want = tree_over_ranks(2, 2 * n, dtype);
                   for (const auto result : {at::kFloat, at::kBFloat16}) {
                     EXPECT_THAT(pinned_all(group, mine, result), HasTheBitsOf(want.to(result)));
                     auto scatter = Reduction::reduce_scatter_sum(group, ReductionOrder::Pinned,
                                                                  mine.clone(), result);
                     EXPECT_THAT(scatter.finish(),
                                 HasTheBitsOf(want.narrow(0, context.rank() * n, n).to(result)));
                   }
                 }
               }),
      "");
}

// Of two NaNs an addition keeps one: the same on both ranks.
TEST(Reduction, WhatTwoRanksTradeHasOneOrderForNansToo) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       auto& group = *context.group();
                       const int32_t bits = 0x7FC00001 + context.rank();
                       const auto mine = at::full({64}, bits, at::kInt).view(at::kFloat);
                       const auto sum = pinned_all(group, mine, at::kFloat);
                       const auto of_all = exchange(group, sum.view(at::kInt).to(at::kLong));
                       EXPECT_TRUE(of_all[0].equal(of_all[1])) << of_all[0][0] << of_all[1][0];
                     }),
            "");
}

// One rank gives up before it hears of the others, which give up afterwards.
TEST(Reduction, OneThatIsDroppedSendsNoMore) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       auto& group = *context.group();
                       const auto mine = at::ones({2 * 5 * (int64_t{1} << 18)});
                       for (const auto order : {ReductionOrder::Pinned, ReductionOrder::Native}) {
                         auto reduction =
                             Reduction::reduce_scatter_sum(group, order, mine.clone(), at::kFloat);
                         if (context.rank() == 0) reduction.drop();
                         const auto word = at::full({3}, context.rank() + 1, at::kLong);
                         EXPECT_EQ(exchange(group, word).sum().item<int64_t>(), 9);
                         if (context.rank() == 1) reduction.drop();
                       }
                     }),
            "");
}

// What is finished or dropped has no sum left to give, whatever way it travelled.
TEST(Reduction, IsFinishedOnce) {
  const auto refusal = testing::HasSubstr("a reduction is finished once");
  for (const int world : {1, 2, 3})
    EXPECT_EQ(
        on_ranks(
            world,
            [&](RankContext& context) {
              for (const auto order :
                   {ReductionOrder::Pinned, ReductionOrder::Native, ReductionOrder::Exact}) {
                for (auto* start : {&Reduction::reduce_scatter_sum, &Reduction::all_reduce_sum}) {
                  const auto begin = [&] {
                    return start(*context.group(), order, at::ones({world * 4}), at::kFloat);
                  };
                  auto finished = begin();
                  finished.finish();
                  EXPECT_THAT(error_of([&] { finished.finish(); }), refusal);
                  auto dropped = begin();
                  dropped.drop();
                  EXPECT_THAT(error_of([&] { dropped.finish(); }), refusal);
                }
              }
            }),
        "");
}

TEST(Reduction, IsNotWrittenIntoAnotherShapeOrType) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       for (const auto& into : {at::empty({3}), at::empty({2}, at::kBFloat16)}) {
                         auto reduction = Reduction::reduce_scatter_sum(
                             *context.group(), ReductionOrder::Pinned, at::ones({4}), at::kFloat);
                         EXPECT_THAT(error_of([&] { reduction.finish(into); }),
                                     testing::HasSubstr("its own shape and type"));
                         reduction.drop();
                       }
                     }),
            "");
}

at::Tensor exact_over_ranks(int world, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> rows;
  for (int rank = 0; rank < world; ++rank) rows.push_back(of_rank(rank, numel, dtype));
  return kernels::exact_row_sum(at::stack(rows), at::kFloat);
}

TEST(Reduction, ExactSumsAreThoseOfTheKernelWhetherTermsTravelOrSums) {
  for_each_sum([](const Sum& sum) {
    const auto want = exact_over_ranks(static_cast<int>(sum.world), sum.world * sum.n, sum.dtype);
    const auto rounded = [](const at::Tensor& of) {
      return of.scalar_type() == at::kFloat ? of : kernels::exact_rounded(of);
    };
    for (const auto& sent : {sum.mine(), kernels::exact_of(sum.mine())}) {
      for (const auto result : {at::kFloat, kernels::kExactSum}) {
        EXPECT_THAT(rounded(Reduction::reduce_scatter_sum(sum.group, ReductionOrder::Exact,
                                                          sent.clone(), result)
                                .finish()),
                    HasTheBitsOf(sum.slice(want)));
        EXPECT_THAT(rounded(Reduction::all_reduce_sum(sum.group, ReductionOrder::Exact,
                                                      sent.clone(), result)
                                .finish()),
                    HasTheBitsOf(want));
      }
    }
  });
}

TEST(Reduction, ExactSumsOfSeveralPiecesHoweverLateTheyCome) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       const int64_t numel = 3 * ((int64_t{2} << 18) + 5);
                       const auto mine = of_rank(context.rank(), numel, at::kFloat);
                       const auto want = exact_over_ranks(3, numel, at::kFloat);
                       const auto late = conformance::faults::adversarial(context.group(), 1);
                       for (const auto& sent : {mine, kernels::exact_of(mine)}) {
                         auto all = Reduction::all_reduce_sum(*late, ReductionOrder::Exact,
                                                              sent.clone(), at::kFloat);
                         EXPECT_THAT(all.finish(), HasTheBitsOf(want));
                       }
                     }),
            "");
}

TEST(Reduction, SeveralMayBeUnderWay) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 std::vector<Reduction> under_way;
                 for (const int64_t n : {10, 4, 8}) {
                   under_way.push_back(Reduction::reduce_scatter_sum(
                       *context.group(), ReductionOrder::Pinned,
                       of_rank(context.rank(), 2 * n, at::kFloat), at::kFloat));
                 }
                 std::size_t at = 0;
                 for (const int64_t n : {10, 4, 8}) {
                   EXPECT_THAT(
                       under_way[at++].finish(),
                       HasTheBitsOf(
                           tree_over_ranks(2, 2 * n, at::kFloat).narrow(0, context.rank() * n, n)));
                 }
               }),
      "");
}

TEST(Reduction, TheNativeSumOfTwoRanksIsThePinnedOne) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto mine = of_rank(context.rank(), 64, at::kFloat);
                       const auto want = tree_over_ranks(2, 64, at::kFloat);
                       auto all = Reduction::all_reduce_sum(
                           *context.group(), ReductionOrder::Native, mine.clone(), at::kFloat);
                       EXPECT_THAT(all.finish(), HasTheBitsOf(want));
                       auto scatter = Reduction::reduce_scatter_sum(
                           *context.group(), ReductionOrder::Native, mine.clone(), at::kFloat);
                       EXPECT_THAT(scatter.finish(),
                                   HasTheBitsOf(want.narrow(0, context.rank() * 32, 32)));
                     }),
            "");
}

TEST(Reduction, NativeSumsOfWholeNumbersAreExactOnAnyNumberOfRanks) {
  for (const int world : {3, 4}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         const int w = context.world_size();
                         const auto mine = at::arange(12 * w, at::kFloat) * (context.rank() + 1);
                         auto all = Reduction::all_reduce_sum(
                             *context.group(), ReductionOrder::Native, mine.clone(), at::kFloat);
                         EXPECT_THAT(all.finish(), HasTheBitsOf(at::arange(12 * w, at::kFloat) *
                                                                (w * (w + 1) / 2)));
                       }),
              "");
  }
}

TEST(Reduction, AnotherDtypeIsAnError) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       EXPECT_THAT(error_of([] {
                                     tree_sum(at::zeros({2, 3}, at::kDouble), at::kFloat);
                                   }),
                                   testing::HasSubstr(
                                       "expected dtype Float, BFloat16 or Half, got Double"));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::comm
