// The four rows of the ZeRO paper's Figure 1.
#include "engine/layout/stage.hpp"

#include <gtest/gtest.h>

namespace equigrad {
namespace {

TEST(Stage, EachOneShardsOneThingMoreThanTheOneBefore) {
  const auto sharded = [](int stage) {
    const Stage& row = stage_row(stage);
    return int{row.optimizer_state_sharded} + int{row.gradients_sharded} +
           int{row.parameters_sharded};
  };
  for (int stage = 0; stage <= 3; ++stage) EXPECT_EQ(sharded(stage), stage);
  EXPECT_TRUE(stage_row(1).optimizer_state_sharded);
  EXPECT_FALSE(stage_row(1).gradients_sharded);
  EXPECT_TRUE(stage_row(2).gradients_sharded);
  EXPECT_FALSE(stage_row(2).parameters_sharded);
  EXPECT_TRUE(stage_row(3).parameters_sharded);
}

TEST(Stage, GradientsAreReducedEveryPassExactlyWhereTheyAreSharded) {
  for (const Stage& row : kStages)
    EXPECT_EQ(row.gradients_reduced == ReduceWhen::EveryPass, row.gradients_sharded);
}

TEST(Stage, FullBucketsLeaveWhereEveryPassIsReducedOrReductionsAreEager) {
  for (const Stage& row : kStages) {
    EXPECT_TRUE(row.sends_full_buckets(true));
    EXPECT_EQ(row.sends_full_buckets(false), row.gradients_reduced == ReduceWhen::EveryPass);
  }
}

TEST(Stage, OnlyStageZeroHasOneShard) {
  EXPECT_EQ(stage_row(0).shards(4), 1);
  for (int stage = 1; stage <= 3; ++stage) EXPECT_EQ(stage_row(stage).shards(4), 4);
}

TEST(Stage, OutsideTheTableIsAnError) {
  EXPECT_THROW(stage_row(-1), Error);
  EXPECT_THROW(stage_row(4), Error);
}

}  // namespace
}  // namespace equigrad
