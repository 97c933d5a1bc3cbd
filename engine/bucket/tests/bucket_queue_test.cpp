// Buckets leave and arrive in the plan's order, once each, whatever the order of the gradients.
#include "engine/bucket/bucket_queue.hpp"

#include <algorithm>

#include "conformance/testing/bits_matcher.hpp"
#include "engine/bucket/tests/queue_alone.hpp"

namespace equigrad::bucket {
namespace {

using conformance::oracle::HasTheBitsOf;

// Two groups of two buckets, and one of one.
struct Groups : Queue {
  explicit Groups(int world)
      : Queue(true, world, true, std::vector<int64_t>(5, layout::kAloneNumel),
              2 * layout::kAloneNumel) {}
  void expect_all() {
    EXPECT_EQ(delivered, (Order{0, 1, 2, 3, 4}));
    for (std::size_t parameter = 0; parameter < 5; ++parameter)
      EXPECT_THAT(sum_of(parameter), HasTheBitsOf(sample(layout::kAloneNumel, parameter)));
  }
};

TEST(BucketQueue, RanksAgreeOnceForAGroupThatIsFull) {
  Groups it(2);
  for (const std::size_t parameter : {3U, 2U}) it.copy_in(parameter, parameter);
  EXPECT_EQ(it.communicator.announced, Numbers{});
  it.copy_in(4, 4);
  EXPECT_EQ(it.communicator.announced, Numbers{0});
  it.copy_in(1, 1);
  EXPECT_EQ(it.communicator.announced, (Numbers{0, 2}));
  EXPECT_EQ(it.communicator.launches, 2);
  it.copy_in(0, 0);
  EXPECT_EQ(it.communicator.launches, 4);
  EXPECT_EQ(it.delivered, (Order{0, 1})) << "one group in flight";
  EXPECT_EQ(it.communicator.announced, (Numbers{0, 2})) << "the last goes with the flush";
  it.queue.flush();
  EXPECT_EQ(it.communicator.asked, Numbers{4}) << "once";
  it.expect_all();
}

TEST(BucketQueue, OneRankAloneKnowsTheAnswer) {
  Groups it(1);
  for (const std::size_t parameter : {3U, 2U}) it.copy_in(parameter, parameter);
  EXPECT_EQ(it.communicator.launches, 0);
  it.copy_in(4, 4);
  EXPECT_EQ(it.communicator.launches, 2);
  it.copy_in(1, 1);
  EXPECT_EQ(it.communicator.launches, 4);
  EXPECT_EQ(it.delivered, (Order{0, 1})) << "one group in flight";
  it.copy_in(0, 0);
  EXPECT_EQ(it.communicator.launches, 4) << "the last goes with the flush";
  it.queue.flush();
  it.expect_all();
}

TEST(BucketQueue, DeliversInThePlansOrderForAnyOrderOfArrival) {
  for (const int world : {1, 2}) {
    for (const bool when_full : {false, true}) {
      Order order{0, 1, 2, 3, 4};
      do {
        Queue it(when_full, world);
        for (const auto parameter : order) it.copy_in(parameter, parameter + 1);
        if (!when_full) EXPECT_EQ(it.delivered, Order{});
        it.queue.flush();
        ASSERT_EQ(it.delivered, kInOrder);
        for (const auto parameter : order) {
          ASSERT_THAT(it.sum_of(parameter),
                      HasTheBitsOf(sample(it.table[parameter].numel, parameter + 1)));
        }
        EXPECT_EQ(it.communicator.most, 2);
        EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), 0);
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST(BucketQueue, LaunchesAFullBucketOnlyAfterThoseBeforeIt) {
  Queue it(true);
  it.copy_in(0, 1);
  it.copy_in(1, 1);
  EXPECT_EQ(it.communicator.announced, Numbers{}) << "buckets 0 and 1 are not full";
  it.copy_in(4, 1);
  EXPECT_EQ(it.communicator.announced, Numbers{0});
  it.copy_in(3, 1);
  EXPECT_EQ(it.communicator.announced, Numbers{0}) << "half of bucket 1";
  it.copy_in(2, 1);
  EXPECT_EQ(it.communicator.announced, (Numbers{0, 1, 2})) << "all but the last";
  EXPECT_EQ(it.communicator.launches, 2);
  EXPECT_EQ(it.communicator.under_way, 1) << "of two, one was waited for";
}

TEST(BucketQueue, LaunchesAllThatAreFullWhereTheAnswerIsKnown) {
  Queue it(true, 1);
  it.copy_in(0, 1);
  it.copy_in(1, 1);
  EXPECT_EQ(it.communicator.launches, 0) << "buckets 0 and 1 are not full";
  it.copy_in(4, 1);
  it.copy_in(3, 1);
  EXPECT_EQ(it.communicator.launches, 1) << "half of bucket 1";
  it.copy_in(2, 1);
  EXPECT_EQ(it.communicator.launches, 3) << "all but the last";
  EXPECT_EQ(it.communicator.under_way, 1) << "of three, two were waited for";
}

TEST(BucketQueue, IfNothingOverlapsAFullBucketIsDeliveredAtOnce) {
  for (const int world : {1, 2}) {
    Queue it(true, world, /*overlaps=*/false);
    it.copy_in(4, 1);
    EXPECT_EQ(it.delivered, Order{0});
    for (const std::size_t parameter : {3U, 2U, 1U}) it.copy_in(parameter, 1);
    EXPECT_EQ(it.delivered, (Order{0, 1, 2}));
    EXPECT_EQ(it.communicator.under_way, 0);
    EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), 0);
  }
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
    const std::size_t parameter = full ? 4 : 3;  // 4 fills bucket 0, which is announced at once
    it.copy_in(parameter, 1);
    it.copy_in(parameter, 2);
    EXPECT_EQ(it.communicator.announced, full ? Numbers{0} : Numbers{});
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
  it.communicator.rounds_of_others = 3;
  it.copy_in(4, 1);
  it.queue.flush();
  EXPECT_EQ(it.delivered.size(), 12U);
  EXPECT_THAT(it.sum_of(4), HasTheBitsOf(at::zeros({9})));
}

TEST(BucketQueue, WhatIsFullOnAnotherRankLeavesBeforeAllFlush) {
  Queue it(true);
  it.communicator.full_there = 2;
  it.copy_in(3, 1);
  it.queue.flush();
  EXPECT_EQ(it.communicator.asked, (Numbers{0, 1, 2}));
  EXPECT_EQ(it.delivered, kInOrder);
  EXPECT_THAT(it.sum_of(3), HasTheBitsOf(sample(6, 1)));
}

TEST(BucketQueue, AFullBucketThatIsPostponedLeavesInTheFlush) {
  for (const bool overlaps : {true, false}) {
    Queue it(true, 2, overlaps);
    it.communicator.postpone = true;
    it.copy_in(4, 1);
    it.copy_in(3, 1);
    it.copy_in(2, 1);
    EXPECT_EQ(it.communicator.announced, Numbers{0}) << "asked once in a pass";
    EXPECT_EQ(it.communicator.launches, 0);
    it.queue.flush();
    EXPECT_EQ(it.delivered, kInOrder);
    EXPECT_THAT(it.sum_of(4), HasTheBitsOf(sample(9, 1)));
    it.copy_in(4, 1);
    EXPECT_EQ(it.communicator.announced, (Numbers{0, 0})) << "and again in the next";
  }
}

TEST(BucketQueue, OnceAllFlushNothingMoreIsAsked) {
  for (const bool when_full : {true, false}) {
    Queue it(when_full);
    it.copy_in(3, 1);
    it.queue.flush();
    EXPECT_EQ(it.communicator.announced, Numbers{});
    EXPECT_EQ(it.communicator.asked, when_full ? Numbers{0} : Numbers{})
        << "those that wait: at the step";
  }
}

TEST(BucketQueue, ShowsTheSumOfWhatWaits) {
  for (const int world : {1, 2}) {
    Queue it(false, world);
    EXPECT_THAT(it.queue.sum_of_waiting(3), HasTheBitsOf(at::zeros({6})));
    it.copy_in(3, 1);
    it.copy_in(3, 2);
    const auto both = sample(6, 1) + sample(6, 2);
    EXPECT_THAT(it.queue.sum_of_waiting(3), HasTheBitsOf(both));
    EXPECT_THAT(it.queue.sum_of_waiting(2), HasTheBitsOf(at::zeros({4})));
    EXPECT_EQ(it.delivered, Order{});
    it.queue.flush();
    EXPECT_THAT(it.sum_of(3), HasTheBitsOf(both)) << "it has waited on";
  }
}

TEST(BucketQueue, ForgetsOneParameterOfWhatWaits) {
  Queue it(false);
  it.queue.forget(3);
  for (const std::size_t parameter : {2U, 3U}) it.copy_in(parameter, parameter);
  it.queue.forget(3);
  it.queue.flush();
  EXPECT_THAT(it.sum_of(3), HasTheBitsOf(at::zeros({6})));
  EXPECT_THAT(it.sum_of(2), HasTheBitsOf(sample(4, 2)));
}

TEST(BucketQueue, ForgetsWhatIsDiscarded) {
  for (const int world : {1, 2}) {
    for (const bool when_full : {false, true}) {
      Queue it(when_full, world);
      it.copy_in(4, 1);  // in flight, or announced, when full
      it.copy_in(3, 1);
      it.queue.discard();
      EXPECT_EQ(it.delivered, Order{});
      EXPECT_EQ(it.communicator.under_way, 0);
      EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), 0);
      it.copy_in(2, 7);
      it.queue.flush();
      EXPECT_EQ(it.delivered, kInOrder);
      EXPECT_THAT(it.sum_of(2), HasTheBitsOf(sample(4, 7)));
      EXPECT_THAT(it.sum_of(3), HasTheBitsOf(at::zeros({6})));
      EXPECT_THAT(it.sum_of(4), HasTheBitsOf(at::zeros({9})));
    }
  }
}

TEST(BucketQueue, AReductionThatCouldNotBeLaunchedLeavesNothingInTheBooks) {
  for (const bool eagerly : {true, false}) {
    Queue it(!eagerly);
    it.queue.launch_eagerly(eagerly);
    it.communicator.refuses = true;
    EXPECT_THAT(conformance::error_of([&] {
                  it.copy_in(4, 1);
                  it.queue.flush();
                }),
                testing::HasSubstr("refused"));
    it.queue.discard();
    EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), 0);
    it.communicator.refuses = false;
    it.copy_in(4, 2);
    it.queue.flush();
    EXPECT_EQ(it.delivered, kInOrder);
    EXPECT_THAT(it.sum_of(4), conformance::oracle::HasTheBitsOf(sample(9, 2)));
    EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), 0);
  }
}

}  // namespace
}  // namespace equigrad::bucket
