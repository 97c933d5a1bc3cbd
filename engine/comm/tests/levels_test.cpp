// Levels lead every slice to its rank, and their sums are the tree's over all ranks, bit for bit.
#include "engine/comm/levels.hpp"

#include <gmock/gmock.h>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/reduction.hpp"

namespace equigrad::comm {
namespace {

using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using testing::ElementsAre;

TEST(Levels, AreOfAHostAndThenOfFactorsOfTwo) {
  EXPECT_THAT(levels_of(12, 4), ElementsAre(Level{4, 1}, Level{3, 4}));
  EXPECT_THAT(levels_of(16, 4), ElementsAre(Level{4, 1}, Level{2, 4}, Level{2, 8}));
  EXPECT_THAT(levels_of(24, 2), ElementsAre(Level{2, 1}, Level{2, 2}, Level{2, 4}, Level{3, 8}));
  EXPECT_EQ(levels_of(4096, 8).size(), 1u + 9u);
}

TEST(Levels, AreOneWhereHostsAreNoPowerOfTwoOrOneHostHasAll) {
  EXPECT_THAT(levels_of(8, 8), ElementsAre(Level{8, 1}));
  EXPECT_THAT(levels_of(6, 3), ElementsAre(Level{6, 1}));
  EXPECT_THAT(levels_of(6, 4), ElementsAre(Level{6, 1}));
  EXPECT_THAT(levels_of(6, 1), ElementsAre(Level{6, 1}));
  EXPECT_THAT(levels_of(4, 8), ElementsAre(Level{4, 1}));
}

TEST(Levels, TellARankByItsDigits) {
  const Level between{3, 4};
  EXPECT_EQ(between.digit_of(9), 2);
  EXPECT_EQ(between.with_digit(9, 0), 1);
  EXPECT_EQ(between.with_digit(1, 2), 9);
}

// What rank 0 adds, without any wire: the rows of a level's ranks, then of the next one's.
at::Tensor sum_by_levels(at::Tensor rows, const std::vector<Level>& levels) {
  for (const auto& level : levels) {
    std::vector<at::Tensor> sums;
    for (int64_t first = 0; first < rows.size(0); first += level.ranks)
      sums.push_back(tree_sum(rows.narrow(0, first, level.ranks), at::kFloat));
    rows = at::stack(sums);
  }
  EXPECT_EQ(rows.size(0), 1);
  return rows[0];
}

TEST(Levels, AddUpToTheBitsOfOneTree) {
  for (const int local : {1, 2, 3, 4, 8, 16})
    for (int hosts = 1; hosts <= 13; ++hosts) {
      const int world = local * hosts;
      std::vector<at::Tensor> rows;
      for (int rank = 0; rank < world; ++rank)
        rows.push_back(sample(64, static_cast<uint64_t>(rank) + 1));
      const auto all = at::stack(rows);
      EXPECT_THAT(sum_by_levels(all, levels_of(world, local)),
                  HasTheBitsOf(tree_sum(all, at::kFloat)))
          << hosts << " hosts of " << local;
    }
}

}  // namespace
}  // namespace equigrad::comm
