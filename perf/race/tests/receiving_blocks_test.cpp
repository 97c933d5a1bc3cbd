// The blocks that reductions receive into, by hand.
#include "perf/race/receiving_blocks.hpp"

#include <gtest/gtest.h>

#include "conformance/testing/sample.hpp"
#include "engine/comm/reduction.hpp"

namespace equigrad::perf {
namespace {

constexpr int64_t kPiece = comm::Reduction::kPieceNumel;

// Every parameter is a bucket and a group of its own.
int64_t of(const std::vector<int64_t>& numels, int shards, int world) {
  return receiving_bytes(layout::BucketPlan(conformance::table_of(numels), shards, 1), world) / 4;
}

// Of two ranks each receives the other's row, of more every rank's.
TEST(ReceivingBlocks, HoldARowOfEveryRankButOfTwo) {
  EXPECT_EQ(of({10}, 1, 1), 10);
  EXPECT_EQ(of({10}, 2, 2), 5);
  EXPECT_EQ(of({10}, 1, 2), 10);
  EXPECT_EQ(of({9}, 3, 3), 3 * 3);
}

// Four pieces are on their way while one is added.
TEST(ReceivingBlocks, AreFivePiecesOfALargeBucket) {
  EXPECT_EQ(of({2 * 2 * kPiece}, 2, 2), 2 * kPiece);
  EXPECT_EQ(of({2 * 3 * kPiece}, 2, 2), 3 * kPiece);
  EXPECT_EQ(of({2 * 9 * kPiece}, 2, 2), 5 * kPiece);
  EXPECT_EQ(of({9 * kPiece}, 1, 2), 5 * kPiece);
}

TEST(ReceivingBlocks, AGroupLeavesBeforeTheLastHasArrivedAndBlocksAreUsedAgain) {
  EXPECT_EQ(of({10, 10}, 2, 2), 10);
  EXPECT_EQ(of({10, 10, 10, 10}, 2, 2), 10);
  const std::vector<int64_t> together(2, layout::kAloneNumel);  // two buckets, one group
  EXPECT_EQ(receiving_bytes(layout::BucketPlan(conformance::table_of(together), 2, kPiece), 2) / 4,
            layout::kAloneNumel);
}

// The last parameter's comes first. A block that is too small makes way for a larger one.
TEST(ReceivingBlocks, GrowWithTheLargestThatIsUnderWay) {
  EXPECT_EQ(of({10, 20}, 2, 2), 10 + 5);
  EXPECT_EQ(of({20, 10}, 2, 2), 5 + 10);
  EXPECT_EQ(of({20, 10, 10}, 2, 2), 10 + 10);
  EXPECT_EQ(of({20, 20, 10}, 2, 2), 10 + 10);
  const int64_t large = 2 * layout::kAloneNumel;
  const std::vector<int64_t> together{layout::kAloneNumel, large, layout::kAloneNumel};
  EXPECT_EQ(receiving_bytes(layout::BucketPlan(conformance::table_of(together), 2, large), 2) / 4,
            layout::kAloneNumel / 2 + layout::kAloneNumel);
}

}  // namespace
}  // namespace equigrad::perf
