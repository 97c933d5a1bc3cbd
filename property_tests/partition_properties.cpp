// The invariants of layout/partition.hpp, word for word: exhaustively in small worlds, then at
// random sizes up to what 64 bits hold.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "engine/layout/partition.hpp"

namespace equigrad::layout {
namespace {

constexpr int kSmallWorld = 9;
constexpr std::int64_t kSmallNumel = 40;

template <typename Check>
void for_every_small_world(Check check) {
  for (std::int64_t numel = 0; numel <= kSmallNumel; ++numel)
    for (int shards = 1; shards <= kSmallWorld; ++shards) check(Partition(numel, shards));
}

Partition any_partition() {
  const auto numel = *rc::gen::oneOf(rc::gen::inRange<std::int64_t>(0, 1000),
                                     rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 60));
  return Partition(numel, *rc::gen::inRange(1, 1025));
}

// Disjoint, in rank order and covering are one statement: each begins where the last one ended.
bool shards_tile_the_buffer(const Partition& partition) {
  std::int64_t next = 0;
  for (int rank = 0; rank < partition.shards(); ++rank) {
    const Range range = partition.range(rank);
    if (range.begin != next || range.end < range.begin) return false;
    next = range.end;
  }
  return next == partition.numel();
}

bool padding_is_at_the_end_only(const Partition& partition) {
  bool ended = false;
  for (int rank = 0; rank < partition.shards(); ++rank) {
    const std::int64_t numel = partition.range(rank).numel();
    if (numel > partition.shard_numel() || (ended && numel > 0)) return false;
    ended = ended || numel < partition.shard_numel();
  }
  return partition.padded_numel() - partition.numel() < partition.shards();
}

TEST(PartitionExhaustively, ShardsAreDisjointInRankOrderAndCoverTheBuffer) {
  for_every_small_world([](const Partition& partition) {
    EXPECT_TRUE(shards_tile_the_buffer(partition))
        << partition.numel() << "/" << partition.shards();
  });
}

TEST(PartitionExhaustively, PaddingIsAtTheEndOnlyAndShorterThanTheWorld) {
  for_every_small_world([](const Partition& partition) {
    EXPECT_TRUE(padding_is_at_the_end_only(partition))
        << partition.numel() << "/" << partition.shards();
  });
}

TEST(PartitionExhaustively, OwnerOfAgreesWithRange) {
  for_every_small_world([](const Partition& partition) {
    for (std::int64_t element = 0; element < partition.numel(); ++element) {
      const Range range = partition.range(partition.owner_of(element));
      EXPECT_TRUE(range.begin <= element && element < range.end)
          << element << " of " << partition.numel() << "/" << partition.shards();
    }
  });
}

TEST(PartitionExhaustively, ScatterThenGatherIsTheIdentityAndPaddingStaysZero) {
  for_every_small_world([](const Partition& partition) {
    const auto columns = static_cast<std::size_t>(partition.shard_numel());
    std::vector<std::int64_t> gathered;
    for (int rank = 0; rank < partition.shards(); ++rank) {
      std::vector<std::int64_t> shard(columns, 0);
      const Range range = partition.range(rank);
      for (std::int64_t i = range.begin; i < range.end; ++i)
        shard.at(static_cast<std::size_t>(i - range.begin)) = i + 1;
      gathered.insert(gathered.end(), shard.begin(), shard.end());
    }
    ASSERT_EQ(static_cast<std::int64_t>(gathered.size()), partition.padded_numel());
    for (std::size_t i = 0; i < gathered.size(); ++i) {
      const auto element = static_cast<std::int64_t>(i);
      EXPECT_EQ(gathered[i], element < partition.numel() ? element + 1 : 0);
    }
  });
}

RC_GTEST_PROP(Partition, ShardsAreDisjointInRankOrderAndCoverTheBuffer, ()) {
  RC_ASSERT(shards_tile_the_buffer(any_partition()));
}

RC_GTEST_PROP(Partition, PaddingIsAtTheEndOnlyAndShorterThanTheWorld, ()) {
  RC_ASSERT(padding_is_at_the_end_only(any_partition()));
}

RC_GTEST_PROP(Partition, OwnerOfAgreesWithRange, ()) {
  const Partition partition = any_partition();
  RC_PRE(partition.numel() > 0);
  const auto element = *rc::gen::inRange<std::int64_t>(0, partition.numel());
  const Range range = partition.range(partition.owner_of(element));
  RC_ASSERT(range.begin <= element);
  RC_ASSERT(element < range.end);
}

}  // namespace
}  // namespace equigrad::layout
