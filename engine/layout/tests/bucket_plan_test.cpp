// Which parameters are sent together, and at which columns, on plans small enough to check by eye.
#include "engine/layout/bucket_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/error.hpp"

namespace equigrad::layout {
namespace {

using testing::ElementsAre;

ParameterTable table_of(const std::vector<std::int64_t>& numels) {
  std::vector<Registration> registrations;
  for (std::size_t i = 0; i < numels.size(); ++i)
    registrations.push_back({"p" + std::to_string(i), &numels[i], {numels[i]}, true, 0});
  return ParameterTable(registrations);
}

std::vector<std::vector<std::size_t>> grouping(const BucketPlan& plan) {
  std::vector<std::vector<std::size_t>> groups;
  for (const Bucket& bucket : plan.buckets()) {
    groups.emplace_back();
    for (const Slot& slot : bucket.slots) groups.back().push_back(slot.parameter);
  }
  return groups;
}

TEST(BucketPlan, BucketsThatLeaveWhenFullAreAnEighthAtMost) {
  const std::int64_t million = 1'000'000, small = std::int64_t{1} << 20;
  auto table = table_of({20 * million, 12 * million, 1});
  EXPECT_EQ(bucket_size(table, 500 * million, true), 4 * million + 1);
  EXPECT_EQ(bucket_size(table, 3 * million, true), 3 * million);
  EXPECT_EQ(bucket_size(table, 500 * million, false), 500 * million);
  table = table_of({million, million});
  EXPECT_EQ(bucket_size(table, 500 * million, true), small);
  EXPECT_EQ(bucket_size(table, 7, true), 7);
  const std::vector<std::int64_t> numels = {16 * million, 9 * million};
  EXPECT_EQ(bucket_size(ParameterTable({{"trained", &numels[0], {numels[0]}, true, 0},
                                        {"frozen", &numels[1], {numels[1]}, false, 0}}),
                        500 * million, true),
            2 * million);
}

TEST(BucketPlan, PlacesTwoParametersAsThePictureShows) {
  const BucketPlan plan(table_of({3, 5}), 2, 100);  // reversed: 5 first
  ASSERT_EQ(plan.buckets().size(), 1u);
  EXPECT_THAT(plan.buckets()[0].slots,
              ElementsAre(Slot{.parameter = 1, .numel = 5, .shard_numel = 3, .offset = 0},
                          Slot{.parameter = 0, .numel = 3, .shard_numel = 2, .offset = 3}));
  EXPECT_EQ(plan.buckets()[0].shard_numel, 5);
  EXPECT_EQ(plan.shard_numel(), 5);
}

TEST(BucketPlan, FillsBucketsInReverseRegistrationOrder) {
  EXPECT_THAT(grouping(BucketPlan(table_of({4, 4, 4, 4, 4}), 2, 8)),
              ElementsAre(ElementsAre(4, 3), ElementsAre(2, 1), ElementsAre(0)));
}

TEST(BucketPlan, AParameterOfExactlyABucketFillsOne) {
  EXPECT_THAT(grouping(BucketPlan(table_of({1, 8, 1}), 3, 8)),
              ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  EXPECT_THAT(grouping(BucketPlan(table_of({3, 5}), 3, 8)), ElementsAre(ElementsAre(1, 0)));
  EXPECT_THAT(grouping(BucketPlan(table_of({4, 5}), 3, 8)),
              ElementsAre(ElementsAre(1), ElementsAre(0)));
}

TEST(BucketPlan, AParameterLargerThanABucketTravelsAlone) {
  EXPECT_THAT(grouping(BucketPlan(table_of({1, 100, 1, 1}), 2, 8)),
              ElementsAre(ElementsAre(3, 2), ElementsAre(1), ElementsAre(0)));
}

TEST(BucketPlan, LargeOnesTravelAlone) {
  const auto table = table_of({4, kAloneNumel, 5, kAloneNumel + 1, 6, kAloneNumel - 1});
  const std::int64_t limit = 4 * kAloneNumel;
  const BucketPlan plan(table, 2, limit);
  EXPECT_EQ(grouping(BucketPlan(table, 1, limit)), grouping(plan));
  EXPECT_THAT(grouping(plan), ElementsAre(ElementsAre(3), ElementsAre(1), ElementsAre(5, 4, 2, 0)));
  EXPECT_EQ(plan.buckets()[1].offset, kAloneNumel / 2 + 1);
  EXPECT_EQ(plan.slot_of(2), (SlotLocation{2, 2}));
  // A bucket that is full comes before what is finished after it.
  EXPECT_THAT(grouping(BucketPlan(table, 2, kAloneNumel + 5)),
              ElementsAre(ElementsAre(5, 4), ElementsAre(3), ElementsAre(1), ElementsAre(2, 0)));
}

TEST(BucketPlan, BucketsInARowLeaveInGroups) {
  const auto groups = [](const std::vector<std::int64_t>& numels, std::int64_t limit) {
    std::vector<std::size_t> found;
    const BucketPlan plan(table_of(numels), 2, limit);
    for (std::size_t bucket = 0; bucket < plan.buckets().size(); ++bucket) {
      found.push_back(plan.buckets()[bucket].group);
      const std::size_t end = plan.end_of_group(bucket);
      EXPECT_EQ(plan.buckets()[end - 1].group, found.back());
      EXPECT_TRUE(end == plan.buckets().size() || plan.buckets()[end].group == found.back() + 1);
    }
    return found;
  };
  const std::int64_t large = kAloneNumel, limit = 500'000'000;
  const std::vector<std::int64_t> ten(10, large);
  EXPECT_THAT(groups(ten, limit), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 1, 1));
  EXPECT_THAT(groups(ten, 2 * large), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 4, 4));
  EXPECT_THAT(groups({large, 9 * large, large, 5}, limit), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(groups({6, 25, 4, 6, 9}, 10), ElementsAre(0, 1, 2, 3));
  const std::vector<std::int64_t> hundred(100, large);  // an eighth is 12 of them, and a half
  EXPECT_EQ(groups(hundred, 100 * large).back(), 8);
  EXPECT_EQ(groups(hundred, 10 * large).back(), 9);
  EXPECT_EQ(groups(std::vector<std::int64_t>(64, 8 * large), limit).back(), 15);  // 2^22 each
}

TEST(BucketPlan, LowerPrecisionHasBucketsOfItsOwn) {
  const std::vector<std::int64_t> numels{4, 3, 5, 1, 2};
  std::vector<Registration> registrations;
  for (std::size_t i = 0; i < numels.size(); ++i)
    registrations.push_back(
        {"p" + std::to_string(i), &numels[i], {numels[i]}, true, 0, i % 2 == 1});
  const BucketPlan plan(ParameterTable(registrations), 2, 7);
  EXPECT_THAT(grouping(plan), ElementsAre(ElementsAre(4, 2), ElementsAre(3, 1), ElementsAre(0)));
  EXPECT_FALSE(plan.buckets()[0].lower_precision);
  EXPECT_TRUE(plan.buckets()[1].lower_precision);
  EXPECT_EQ(plan.buckets()[1].offset, plan.buckets()[0].shard_numel);
  EXPECT_EQ(plan.buckets()[2].offset, plan.buckets()[1].offset + plan.buckets()[1].shard_numel);
  EXPECT_EQ(plan.shard_numel(), plan.buckets()[2].offset + plan.buckets()[2].shard_numel);
}

TEST(BucketPlan, BucketsLieEndToEndInTheShardSpace) {
  const BucketPlan plan(table_of({5, 1, 9}), 4, 1);  // 9 -> 3 columns, 1 -> 1, 5 -> 2
  ASSERT_EQ(plan.buckets().size(), 3u);
  EXPECT_EQ(plan.buckets()[0].offset, 0);
  EXPECT_EQ(plan.buckets()[1].offset, 3);
  EXPECT_EQ(plan.buckets()[2].offset, 4);
  EXPECT_EQ(plan.shard_numel(), 6);
}

TEST(BucketPlan, LeavesOutFrozenAndEmptyParameters) {
  const std::vector<char> tensors(3);
  const ParameterTable table({{"frozen", &tensors[0], {4}, false, 0},
                              {"empty", &tensors[1], {0}, true, 0},
                              {"used", &tensors[2], {}, true, 0}});
  const BucketPlan plan(table, 2, 8);
  EXPECT_THAT(grouping(plan), ElementsAre(ElementsAre(2)));
  EXPECT_FALSE(plan.slot_of(0).has_value());
  EXPECT_FALSE(plan.slot_of(1).has_value());
  ASSERT_TRUE(plan.slot_of(2).has_value());
  EXPECT_EQ(*plan.slot_of(2), (SlotLocation{0, 0}));
  EXPECT_EQ(plan.slot(*plan.slot_of(2)).parameter, 2u);
}

TEST(BucketPlan, ATableWithNothingToTrainHasNoBuckets) {
  const BucketPlan plan(table_of({}), 2, 8);
  EXPECT_TRUE(plan.buckets().empty());
  EXPECT_EQ(plan.shard_numel(), 0);
}

TEST(BucketPlan, HoldsTheLargestBucketSize) {
  EXPECT_THAT(grouping(BucketPlan(table_of({4, 4}), 2, std::numeric_limits<std::int64_t>::max())),
              ElementsAre(ElementsAre(1, 0)));
}

TEST(BucketPlan, RefusesWhatHasNoMeaning) {
  EXPECT_THROW(BucketPlan(table_of({4}), 0, 8), Error);
  EXPECT_THROW(BucketPlan(table_of({}), 0, 8), Error);
  EXPECT_THROW(BucketPlan(table_of({4}), 2, 0), Error);
  EXPECT_THROW(BucketPlan(table_of({4}), 2, 8).slot_of(1), Error);
}

}  // namespace
}  // namespace equigrad::layout
