// Real ranks that are told that they are on several hosts: the bits of the tree over all of them,
// by fewer messages.
#include "engine/comm/level_sum.hpp"

#include "conformance/faults/forwarding_communicator.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/counting_communicator.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/reduction.hpp"

namespace equigrad::comm {
namespace {

using conformance::CountingCommunicator;
using conformance::sample;
using conformance::sum_of_tree;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

class Hosts final : public conformance::faults::ForwardingCommunicator {
 public:
  Hosts(std::shared_ptr<Communicator> real, int local_ranks)
      : ForwardingCommunicator(std::move(real)), local_ranks_(local_ranks) {}
  int local_ranks() const override { return local_ranks_; }

 private:
  int local_ranks_;
};

at::Tensor of_rank(int rank, int64_t numel, at::ScalarType dtype) {
  return sample(numel, static_cast<uint64_t>(rank) + 100, dtype);
}

at::Tensor tree_over_ranks(int world, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> rows;
  for (int rank = 0; rank < world; ++rank) rows.push_back(of_rank(rank, numel, dtype));
  return sum_of_tree(rows);
}

void expect_the_tree(RankContext& context, Communicator& group, int64_t n, at::ScalarType dtype,
                     at::ScalarType result) {
  const int64_t w = context.world_size();
  const auto tree = tree_over_ranks(static_cast<int>(w), w * n, dtype).to(result);
  const auto mine = [&] { return of_rank(context.rank(), w * n, dtype); };
  EXPECT_THAT(Reduction::reduce_scatter_sum(group, ReductionOrder::Pinned, mine(), result).finish(),
              HasTheBitsOf(tree.narrow(0, context.rank() * n, n)));
  EXPECT_THAT(Reduction::all_reduce_sum(group, ReductionOrder::Pinned, mine(), result).finish(),
              HasTheBitsOf(tree));
}

TEST(LevelSum, HasTheBitsOfTheTreeOverAllRanks) {
  for (const auto& [local, hosts] : {std::pair{2, 2}, {2, 3}, {2, 4}, {4, 2}})
    EXPECT_EQ(on_ranks(local * hosts,
                       [local = local](RankContext& context) {
                         Hosts group(context.group(), local);
                         for (const int64_t n : {1, 5, 1023})
                           for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
                             for (const auto result : {at::kFloat, dtype})
                               expect_the_tree(context, group, n, dtype, result);
                       }),
              "");
}

// More pieces than are under way at once, the last one shorter, several reductions at a time.
TEST(LevelSum, OfManyPiecesAndReductionsInFlight) {
  EXPECT_EQ(on_ranks(4,
                     [](RankContext& context) {
                       Hosts group(context.group(), 2);
                       const int64_t n = (Reduction::kInFlight + 2) * Reduction::kPieceNumel + 3;
                       const auto first = at::full({4 * n}, 1.0 + context.rank());
                       const auto second = at::full({4 * 7}, 10.0 + context.rank());
                       const auto start = [&](const at::Tensor& buffer) {
                         return Reduction::reduce_scatter_sum(group, ReductionOrder::Pinned,
                                                              buffer.clone(), at::kFloat);
                       };
                       auto one = start(first), two = start(second), dropped = start(second);
                       EXPECT_TRUE(one.finish().eq(10.0).all().item<bool>());
                       EXPECT_TRUE(two.finish().eq(46.0).all().item<bool>());
                       dropped.drop();
                       EXPECT_TRUE(start(second).finish().eq(46.0).all().item<bool>());
                     }),
            "");
}

// Two hosts of four: 3 + 1 messages and not 7, and to the other host a quarter of the bytes.
TEST(LevelSum, SendsFewerMessages) {
  EXPECT_EQ(on_ranks(8,
                     [](RankContext& context) {
                       class Counted final : public CountingCommunicator {
                        public:
                         using CountingCommunicator::CountingCommunicator;
                         int local_ranks() const override { return 4; }
                       } group(context.group());
                       const int64_t n = 11;
                       Reduction::reduce_scatter_sum(group, ReductionOrder::Pinned,
                                                     of_rank(context.rank(), 8 * n, at::kBFloat16),
                                                     at::kFloat)
                           .finish();
                       EXPECT_EQ(group.counts().collectives.at("send"), 3 + 1);
                       EXPECT_EQ(group.counts().collectives.size(), 1u);
                       EXPECT_EQ(group.counts().bytes, 3 * 2 * n * 2 + n * 4) << "sums in fp32";
                     }),
            "");
}

TEST(LevelSum, IsNotWhatExactAndNativeSumsTake) {
  EXPECT_EQ(on_ranks(4,
                     [](RankContext& context) {
                       class Counted final : public CountingCommunicator {
                        public:
                         using CountingCommunicator::CountingCommunicator;
                         int local_ranks() const override { return 2; }
                       } group(context.group());
                       for (const auto order : {ReductionOrder::Exact, ReductionOrder::Native})
                         Reduction::reduce_scatter_sum(
                             group, order, of_rank(context.rank(), 20, at::kFloat), at::kFloat)
                             .finish();
                       EXPECT_EQ(group.counts().collectives.count("send"), 0u);
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::comm
