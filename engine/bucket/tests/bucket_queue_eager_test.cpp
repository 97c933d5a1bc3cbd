// Full buckets that are announced, and buckets that wait for the step and are sent eagerly, before
// it.
#include "conformance/testing/bits_matcher.hpp"
#include "engine/bucket/tests/queue_alone.hpp"

namespace equigrad::bucket {
namespace {

using conformance::oracle::HasTheBitsOf;

TEST(BucketQueue, WhatIsAnnouncedLeavesWhenOneMoreBucketIsFull) {
  Queue it(true);
  it.copy_in(4, 5);
  EXPECT_EQ(it.communicator.announced, Numbers{0});
  EXPECT_EQ(it.communicator.under_way, 0) << "the answer is not known";
  it.copy_in(3, 4);
  EXPECT_EQ(it.communicator.under_way, 0) << "half of a bucket";
  it.copy_in(0, 1);
  EXPECT_EQ(it.communicator.under_way, 1) << "another bucket, whichever";
  EXPECT_EQ(it.communicator.announced, Numbers{0});
  it.copy_in(2, 3);
  EXPECT_EQ(it.communicator.announced, (Numbers{0, 1}));
  EXPECT_EQ(it.delivered, Order{});
  it.copy_in(1, 2);
  EXPECT_EQ(it.communicator.announced, (Numbers{0, 1, 2})) << "the last goes with the flush";
  EXPECT_EQ(it.delivered, Order{0});
  EXPECT_EQ(it.communicator.asked, Numbers{});
  it.queue.flush();
  EXPECT_EQ(it.communicator.asked, Numbers{3}) << "once";
  EXPECT_EQ(it.delivered, kInOrder);
  for (std::size_t parameter = 0; parameter < 5; ++parameter)
    EXPECT_THAT(it.sum_of(parameter),
                HasTheBitsOf(sample(it.table[parameter].numel, parameter + 1)));
}

TEST(BucketQueue, AnAnswerThatPostponesIsHeardBeforeTheFlush) {
  Queue it(true);
  it.communicator.postpone = true;
  for (const std::size_t parameter : {4U, 3U, 2U, 1U}) it.copy_in(parameter, 1);
  EXPECT_EQ(it.communicator.announced, Numbers{0}) << "once in a pass";
  it.queue.flush();
  EXPECT_EQ(it.communicator.asked, Numbers{0});
  EXPECT_EQ(it.delivered, kInOrder);
  EXPECT_THAT(it.sum_of(4), HasTheBitsOf(sample(9, 1)));
}

// There, and nowhere later, all ranks are at the same place.
TEST(BucketQueue, WhatIsAnnouncedLeavesWhereAnotherEngineHearsTheAnswer) {
  Queue it(true);
  agreement::Participant another(it.communicator, 1);
  it.copy_in(4, 1);
  EXPECT_EQ(it.communicator.launches, 0);
  another.meet(agreement::ObservedUpdate{});
  EXPECT_EQ(it.communicator.launches, 1);
  it.queue.flush();
  EXPECT_EQ(it.delivered, kInOrder);
}

TEST(BucketQueue, AnAnswerThatThrewWhereAnotherSpokeThrowsHereToo) {
  Queue it(true);
  agreement::Participant another(it.communicator, 1);
  it.copy_in(4, 1);
  it.communicator.abandons = true;
  EXPECT_THAT(conformance::error_of([&] { another.settle(); }),
              testing::HasSubstr("got an exception on rank 1"));
  it.communicator.abandons = false;
  EXPECT_THAT(conformance::error_of([&] { it.copy_in(1, 1); }),
              testing::HasSubstr("got an exception on another rank"));
  it.queue.discard();
  EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), 0);
}

// The others launch what this rank announced before it threw, or took its word back.
TEST(BucketQueue, WhatWasAnnouncedIsSettledBeforeItIsForgottenOrTakenBack) {
  for (const bool discards : {true, false}) {
    Queue it(discards);
    it.queue.launch_eagerly(!discards);
    it.copy_in(4, 1);
    EXPECT_EQ(it.communicator.unheard, 1);
    discards ? it.queue.discard() : it.queue.take_back();
    EXPECT_EQ(it.communicator.unheard, 0);
    EXPECT_EQ(it.communicator.most, 1) << "it was launched, and dropped";
    EXPECT_EQ(it.communicator.under_way, 0);
    it.copy_in(3, 7);
    it.queue.flush();
    EXPECT_EQ(it.delivered, kInOrder);
    EXPECT_THAT(it.sum_of(3), HasTheBitsOf(sample(6, 7)));
    EXPECT_THAT(it.sum_of(4), HasTheBitsOf(discards ? at::zeros({9}) : sample(9, 1)));
    EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), 0);
  }
}

// Where a rank has filled less than others, they wait for a word of it.
TEST(BucketQueue, AtTheEndOfAPassOthersAreToldThatNoMoreLeavesEagerly) {
  const auto said = [](const Order& parameters, bool eager, bool postpone) {
    Queue it(false);
    it.communicator.postpone = postpone;
    it.queue.launch_eagerly(eager);
    for (const auto parameter : parameters) it.copy_in(parameter, 1);
    it.queue.end_eager_launches();
    return it.communicator.announced;
  };
  EXPECT_EQ(said({4}, true, false), (Numbers{0, -1}));
  EXPECT_EQ(said({}, true, false), Numbers{-1});
  EXPECT_EQ(said({4}, false, false), Numbers{});
  EXPECT_EQ(said({4}, true, true), Numbers{0}) << "those after it are postponed too";
  EXPECT_EQ(said({4, 3, 2, 1, 0}, true, false), (Numbers{0, 1, 2})) << "all but the last";
}

TEST(BucketQueue, WhatIsFullMayBeSentEagerlyAllButTheLastGroup) {
  Queue it(false, 1);
  it.queue.launch_eagerly(true);
  for (const std::size_t parameter : {0U, 4U, 3U, 2U}) it.copy_in(parameter, parameter + 1);
  EXPECT_EQ(it.queue.left_eagerly(), 2U);
  it.copy_in(1, 2);
  EXPECT_EQ(it.communicator.launches, 3);
  EXPECT_EQ(it.queue.left_eagerly(), 3U);
  EXPECT_EQ(it.delivered, (Order{0, 1})) << "one under way";
  const int64_t all_bytes = 4 * (9 + 10 + 25 + 6);
  EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), all_bytes) << "what was sent stays";
  it.queue.flush();
  EXPECT_EQ(it.communicator.launches, 4);
  EXPECT_EQ(it.delivered, kInOrder);
  EXPECT_EQ(it.queue.left_eagerly(), 0U);
  EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), 0);
  for (std::size_t parameter = 0; parameter < 5; ++parameter)
    EXPECT_THAT(it.sum_of(parameter),
                HasTheBitsOf(sample(it.table[parameter].numel, parameter + 1)));
}

TEST(BucketQueue, AGradientForWhatWasSentEagerlyTakesAllBack) {
  for (const std::size_t parameter : {4U, 3U}) {  // that has arrived, or is under way
    Queue it(false, 1);
    it.queue.launch_eagerly(true);
    for (const std::size_t each : {4U, 3U, 2U, 1U}) it.copy_in(each, each + 1);
    EXPECT_EQ(it.queue.left_eagerly(), 3U);
    it.copy_in(parameter, 9);
    EXPECT_EQ(it.queue.left_eagerly(), 0U);
    EXPECT_EQ(it.communicator.under_way, 0);
    it.copy_in(0, 1);
    EXPECT_EQ(it.communicator.launches, 3) << "nothing more is sent eagerly";
    it.delivered.clear();
    it.queue.flush();
    EXPECT_EQ(it.delivered, kInOrder);
    const int64_t numel = it.table[parameter].numel;
    EXPECT_THAT(it.sum_of(parameter),
                HasTheBitsOf(sample(numel, parameter + 1) + sample(numel, 9)));
    EXPECT_THAT(it.sum_of(1), HasTheBitsOf(sample(25, 2)));
    EXPECT_EQ(it.ledger.bytes(memory::Category::Buckets), 0);
  }
}

}  // namespace
}  // namespace equigrad::bucket
