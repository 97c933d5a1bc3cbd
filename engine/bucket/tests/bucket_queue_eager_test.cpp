// Full buckets that are announced, and buckets that wait for the step and are sent eagerly, before
// it.
#include "conformance/testing/bits_matcher.hpp"
#include "engine/bucket/tests/queue_alone.hpp"

namespace equigrad::bucket {
namespace {

using conformance::oracle::HasTheBitsOf;

struct AnnouncingQueue : Queue {
  explicit AnnouncingQueue(bool when_full = true)
      : Queue(when_full, {6, 25, 4, 6, 9}, 10, true, true) {}
};

TEST(BucketQueue, WhatIsAnnouncedLeavesWhenOneMoreBucketIsFull) {
  AnnouncingQueue it;
  it.copy_in(4, 5);
  EXPECT_EQ(it.announced, Order{0});
  EXPECT_EQ(it.alone.under_way, 0) << "the answer is not known";
  it.copy_in(3, 4);
  EXPECT_EQ(it.alone.under_way, 0) << "half of a bucket";
  it.copy_in(0, 1);
  EXPECT_EQ(it.alone.under_way, 1) << "another bucket, whichever";
  EXPECT_EQ(it.announced, Order{0});
  it.copy_in(2, 3);
  EXPECT_EQ(it.announced, (Order{0, 1}));
  EXPECT_EQ(it.delivered, Order{});
  it.copy_in(1, 2);
  EXPECT_EQ(it.announced, (Order{0, 1, 2})) << "the last goes with the flush";
  EXPECT_EQ(it.delivered, Order{0});
  EXPECT_EQ(it.asked, Order{});
  it.queue.flush();
  EXPECT_EQ(it.asked, Order{3}) << "once";
  EXPECT_EQ(it.delivered, kInOrder);
  for (std::size_t parameter = 0; parameter < 5; ++parameter)
    EXPECT_THAT(it.sum_of(parameter),
                HasTheBitsOf(sample(it.table[parameter].numel, parameter + 1)));
}

TEST(BucketQueue, AnAnswerThatPostponesIsHeardBeforeTheFlush) {
  AnnouncingQueue it;
  it.postpone = true;
  for (const std::size_t parameter : {4U, 3U, 2U, 1U}) it.copy_in(parameter, 1);
  EXPECT_EQ(it.announced, Order{0}) << "once in a pass";
  it.queue.flush();
  EXPECT_EQ(it.asked, Order{0});
  EXPECT_EQ(it.delivered, kInOrder);
  EXPECT_THAT(it.sum_of(4), HasTheBitsOf(sample(9, 1)));
}

TEST(BucketQueue, AnAnswerThatThrewWhereAnotherSpokeThrowsHereToo) {
  AnnouncingQueue it;
  it.copy_in(4, 1);
  it.then = nullptr;
  it.lost = true;
  EXPECT_THAT(conformance::error_of([&] { it.copy_in(1, 1); }),
              testing::HasSubstr("got an exception on another rank"));
  it.queue.discard();
  EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), 0);
}

// The others launch what this rank announced before it threw, or took its word back.
TEST(BucketQueue, WhatWasAnnouncedIsSettledBeforeItIsForgottenOrTakenBack) {
  for (const bool discards : {true, false}) {
    AnnouncingQueue it(discards);
    it.queue.send_eagerly(!discards);
    it.copy_in(4, 1);
    EXPECT_TRUE(it.then);
    discards ? it.queue.discard() : it.queue.take_back();
    EXPECT_FALSE(it.then);
    EXPECT_EQ(it.alone.most, 1) << "it was launched, and dropped";
    EXPECT_EQ(it.alone.under_way, 0);
    it.copy_in(3, 7);
    it.queue.flush();
    EXPECT_EQ(it.delivered, kInOrder);
    EXPECT_THAT(it.sum_of(3), HasTheBitsOf(sample(6, 7)));
    EXPECT_THAT(it.sum_of(4), HasTheBitsOf(discards ? at::zeros({9}) : sample(9, 1)));
    EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), 0);
  }
}

TEST(BucketQueue, WhatIsFullMayBeSentEagerlyAllButTheLastGroup) {
  Queue it(false);
  it.queue.send_eagerly(true);
  for (const std::size_t parameter : {0U, 4U, 3U, 2U}) it.copy_in(parameter, parameter + 1);
  EXPECT_EQ(it.queue.eagerly_sent(), 2U);
  it.copy_in(1, 2);
  EXPECT_EQ(it.asked, (Order{0, 1, 2}));
  EXPECT_EQ(it.queue.eagerly_sent(), 3U);
  EXPECT_EQ(it.delivered, (Order{0, 1})) << "one under way";
  const int64_t all_bytes = 4 * (9 + 10 + 25 + 6);
  EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), all_bytes) << "what was sent stays";
  it.queue.flush();
  EXPECT_EQ(it.asked, (Order{0, 1, 2, 3}));
  EXPECT_EQ(it.delivered, kInOrder);
  EXPECT_EQ(it.queue.eagerly_sent(), 0U);
  EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), 0);
  for (std::size_t parameter = 0; parameter < 5; ++parameter)
    EXPECT_THAT(it.sum_of(parameter),
                HasTheBitsOf(sample(it.table[parameter].numel, parameter + 1)));
}

TEST(BucketQueue, AGradientForWhatWasSentEagerlyTakesAllBack) {
  for (const std::size_t parameter : {4U, 3U}) {  // that has arrived, or is under way
    Queue it(false);
    it.queue.send_eagerly(true);
    for (const std::size_t each : {4U, 3U, 2U, 1U}) it.copy_in(each, each + 1);
    EXPECT_EQ(it.queue.eagerly_sent(), 3U);
    it.copy_in(parameter, 9);
    EXPECT_EQ(it.queue.eagerly_sent(), 0U);
    EXPECT_EQ(it.alone.under_way, 0);
    it.copy_in(0, 1);
    EXPECT_EQ(it.asked, (Order{0, 1, 2})) << "nothing more is sent eagerly";
    it.delivered.clear();
    it.queue.flush();
    EXPECT_EQ(it.delivered, kInOrder);
    const int64_t numel = it.table[parameter].numel;
    EXPECT_THAT(it.sum_of(parameter),
                HasTheBitsOf(sample(numel, parameter + 1) + sample(numel, 9)));
    EXPECT_THAT(it.sum_of(1), HasTheBitsOf(sample(25, 2)));
    EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), 0);
  }
}

}  // namespace
}  // namespace equigrad::bucket
