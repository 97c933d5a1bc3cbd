// The worked example of the header, the borders, and the errors.
#include "engine/layout/partition.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "engine/error.hpp"

namespace equigrad::layout {
namespace {

TEST(Partition, CutsTenElementsIntoFourAsThePictureShows) {
  const Partition partition(10, 4);
  EXPECT_EQ(partition.shard_numel(), 3);
  EXPECT_EQ(partition.padded_numel(), 12);
  EXPECT_EQ(partition.range(0), (Range{0, 3}));
  EXPECT_EQ(partition.range(2), (Range{6, 9}));
  EXPECT_EQ(partition.range(3), (Range{9, 10}));
  EXPECT_EQ(partition.owner_of(8), 2);
  EXPECT_EQ(partition.owner_of(9), 3);
}

TEST(Partition, OneShardHoldsEverythingWithoutPadding) {
  const Partition partition(7, 1);
  EXPECT_EQ(partition.padded_numel(), 7);
  EXPECT_EQ(partition.range(0), (Range{0, 7}));
}

TEST(Partition, ShardsBeyondTheEndAreEmpty) {
  const Partition partition(5, 4);  // two each: 2 2 1 0
  EXPECT_EQ(partition.range(2), (Range{4, 5}));
  EXPECT_EQ(partition.range(3), (Range{5, 5}));
  const Partition scalar(1, 3);
  EXPECT_EQ(scalar.range(0).numel(), 1);
  EXPECT_EQ(scalar.range(2).numel(), 0);
}

TEST(Partition, AnEmptyParameterHasEmptyShards) {
  const Partition partition(0, 3);
  EXPECT_EQ(partition.padded_numel(), 0);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(partition.range(rank), (Range{0, 0}));
  EXPECT_THROW(partition.owner_of(0), Error);
}

TEST(Partition, HoldsTheLargestSizesWithoutOverflow) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  const Partition partition(largest - 8, 8);
  EXPECT_EQ(partition.range(7).end, largest - 8);
  EXPECT_EQ(partition.owner_of(largest - 9), 7);
  EXPECT_THROW(Partition(largest, 8), Error);
}

TEST(Partition, RefusesWhatHasNoMeaning) {
  EXPECT_THROW(Partition(-1, 2), Error);
  EXPECT_THROW(Partition(4, 0), Error);
  const Partition partition(4, 2);
  EXPECT_THROW(partition.range(-1), Error);
  EXPECT_THROW(partition.range(2), Error);
  EXPECT_THROW(partition.owner_of(-1), Error);
  EXPECT_THROW(partition.owner_of(4), Error);
}

}  // namespace
}  // namespace equigrad::layout
