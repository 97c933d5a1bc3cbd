// Buckets leave and arrive in the plan's order, once each, whatever the order of the gradients.
#include "engine/bucket/bucket_queue.hpp"

#include <algorithm>

#include "conformance/testing/bits_matcher.hpp"
#include "engine/bucket/tests/queue_alone.hpp"

namespace equigrad::bucket {
namespace {

using conformance::oracle::HasTheBitsOf;

// Two groups of two buckets, and one of one.
TEST(BucketQueue, RanksAgreeOnceForAGroupThatIsFull) {
  Queue it(true, std::vector<int64_t>(5, layout::kAloneNumel), 2 * layout::kAloneNumel);
  for (const std::size_t parameter : {3U, 2U}) it.copy_in(parameter, parameter);
  EXPECT_EQ(it.asked, Order{});
  it.copy_in(4, 4);
  EXPECT_EQ(it.asked, Order{0});
  it.copy_in(1, 1);
  EXPECT_EQ(it.asked, (Order{0, 2}));
  EXPECT_EQ(it.delivered, (Order{0, 1})) << "one group in flight";
  it.copy_in(0, 0);
  EXPECT_EQ(it.asked, (Order{0, 2})) << "the last goes with the flush";
  it.queue.flush();
  EXPECT_EQ(it.asked, (Order{0, 2, 4})) << "once";
  EXPECT_EQ(it.delivered, (Order{0, 1, 2, 3, 4}));
  for (std::size_t parameter = 0; parameter < 5; ++parameter)
    EXPECT_THAT(it.sum_of(parameter), HasTheBitsOf(sample(layout::kAloneNumel, parameter)));
}

TEST(BucketQueue, DeliversInThePlansOrderForAnyOrderOfArrival) {
  for (const bool when_full : {false, true}) {
    Order order{0, 1, 2, 3, 4};
    do {
      Queue it(when_full);
      for (const auto parameter : order) it.copy_in(parameter, parameter + 1);
      if (!when_full) EXPECT_EQ(it.delivered, Order{});
      it.queue.flush();
      ASSERT_EQ(it.delivered, kInOrder);
      for (const auto parameter : order) {
        ASSERT_THAT(it.sum_of(parameter),
                    HasTheBitsOf(sample(it.table[parameter].numel, parameter + 1)));
      }
      EXPECT_EQ(it.alone.most, 2);
      EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), 0);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(BucketQueue, LaunchesAFullBucketOnlyAfterThoseBeforeIt) {
  Queue it(true);
  it.copy_in(0, 1);
  it.copy_in(1, 1);
  EXPECT_EQ(it.asked, Order{}) << "buckets 0 and 1 are not full";
  it.copy_in(4, 1);
  EXPECT_EQ(it.asked, Order{0});
  it.copy_in(3, 1);
  EXPECT_EQ(it.asked, Order{0}) << "half of bucket 1";
  it.copy_in(2, 1);
  EXPECT_EQ(it.asked, (Order{0, 1, 2})) << "all but the last";
  EXPECT_EQ(it.alone.under_way, 1) << "of three, two were waited for";
}

TEST(BucketQueue, IfNothingOverlapsAFullBucketIsDeliveredAtOnce) {
  Queue it(true, {6, 25, 4, 6, 9}, 10, /*overlaps=*/false);
  it.copy_in(4, 1);
  EXPECT_EQ(it.delivered, Order{0});
  for (const std::size_t parameter : {3U, 2U, 1U}) it.copy_in(parameter, 1);
  EXPECT_EQ(it.delivered, (Order{0, 1, 2}));
  EXPECT_EQ(it.alone.under_way, 0);
  EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), 0);
}

TEST(BucketQueue, WhatDidNotArriveIsZero) {
  for (const bool when_full : {false, true}) {
    Queue it(when_full);
    it.copy_in(3, 1);
    it.queue.flush();
    EXPECT_EQ(it.delivered, kInOrder);
    EXPECT_THAT(it.sum_of(3), HasTheBitsOf(sample(6, 1)));
    for (const std::size_t parameter : std::vector<std::size_t>{0, 1, 2, 4}) {
      EXPECT_THAT(it.sum_of(parameter), HasTheBitsOf(at::zeros({it.table[parameter].numel})));
    }
  }
}

TEST(BucketQueue, TheKthGradientOfAParameterTravelsInRoundKWhetherItsBucketHasLeftOrNot) {
  for (const bool full : {true, false}) {
    Queue it(true);
    const std::size_t parameter = full ? 4 : 3;  // 4 fills bucket 0, which leaves at once
    it.copy_in(parameter, 1);
    it.copy_in(parameter, 2);
    EXPECT_EQ(it.asked, full ? Order{0} : Order{});
    it.queue.flush();
    EXPECT_EQ(it.delivered, (Order{0, 1, 2, 3, 0, 1, 2, 3}));
    EXPECT_THAT(it.sum_of(parameter), HasTheBitsOf(sample(it.table[parameter].numel, 2)));
    it.delivered.clear();
    it.copy_in(parameter, 3);
    it.queue.flush();
    EXPECT_EQ(it.delivered, kInOrder) << "counted anew after a flush";
  }
}

TEST(BucketQueue, RunsAsManyRoundsAsAnyRankNeeds) {
  Queue it(true);
  it.rounds_of_others = 3;
  it.copy_in(4, 1);
  it.queue.flush();
  EXPECT_EQ(it.delivered.size(), 12U);
  EXPECT_THAT(it.sum_of(4), HasTheBitsOf(at::zeros({9})));
}

TEST(BucketQueue, AFullBucketThatIsPostponedLeavesInTheFlush) {
  Queue it(true);
  it.postpone = true;
  it.copy_in(4, 1);
  it.copy_in(3, 1);
  it.copy_in(2, 1);
  EXPECT_EQ(it.asked, Order{0}) << "asked once in a pass";
  EXPECT_EQ(it.alone.under_way, 0);
  it.queue.flush();
  EXPECT_EQ(it.delivered, kInOrder);
  EXPECT_THAT(it.sum_of(4), HasTheBitsOf(sample(9, 1)));
  it.copy_in(4, 1);
  EXPECT_EQ(it.asked.back(), 0U) << "and again in the next";
}

TEST(BucketQueue, OnceAllFlushNothingMoreIsAsked) {
  Queue it(false);
  it.copy_in(4, 1);
  it.queue.flush();
  EXPECT_EQ(it.asked, Order{0});
}

TEST(BucketQueue, ShowsWhatWasCopiedInAndHasNotLeft) {
  Queue it(false);
  EXPECT_FALSE(it.queue.columns_of(3).defined());
  it.copy_in(3, 1);
  it.copy_in(3, 2);
  EXPECT_THAT(it.queue.columns_of(3), HasTheBitsOf((sample(6, 1) + sample(6, 2)).view({1, 6})));
}

TEST(BucketQueue, ForgetsWhatIsDiscarded) {
  for (const bool when_full : {false, true}) {
    Queue it(when_full);
    it.copy_in(4, 1);  // in flight, when full
    it.copy_in(3, 1);
    it.queue.discard();
    EXPECT_EQ(it.delivered, Order{});
    EXPECT_EQ(it.alone.under_way, 0);
    EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), 0);
    it.copy_in(2, 7);
    it.queue.flush();
    EXPECT_EQ(it.delivered, kInOrder);
    EXPECT_THAT(it.sum_of(2), HasTheBitsOf(sample(4, 7)));
    EXPECT_THAT(it.sum_of(3), HasTheBitsOf(at::zeros({6})));
    EXPECT_THAT(it.sum_of(4), HasTheBitsOf(at::zeros({9})));
  }
}

}  // namespace
}  // namespace equigrad::bucket
