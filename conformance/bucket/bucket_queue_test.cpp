// Buckets leave and arrive in the plan's order, once each, whatever the order of the gradients.
#include "engine/bucket/bucket_queue.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "conformance/oracle/bits_matcher.hpp"
#include "conformance/sample.hpp"

namespace equigrad::bucket {
namespace {

using conformance::sample;
using conformance::table_of;
using conformance::oracle::HasTheBitsOf;
using Order = std::vector<std::size_t>;

// One rank alone, which counts what is under way.
class Alone final : public comm::Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  c10::Device device() const override { return c10::kCPU; }
  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    most = std::max(most, ++under_way);
    return std::make_unique<Copy>(*this, output, input);
  }
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    ++under_way;
    return std::make_unique<Copy>(*this, output, input);
  }
  comm::PendingPtr all_reduce_sum(const at::Tensor&) override { throw Error("test", "native"); }
  comm::PendingPtr reduce_scatter_sum(const at::Tensor&, const at::Tensor&) override {
    throw Error("test", "native");
  }
  comm::PendingPtr broadcast(const at::Tensor&, int) override { throw Error("test", "broadcast"); }

  int under_way = 0;
  int most = 0;

 private:
  struct Copy final : comm::Pending {
    Copy(Alone& owner, at::Tensor output, at::Tensor input)
        : owner(owner), output(std::move(output)), input(std::move(input)) {}
    void wait() override {
      output.copy_(input);
      --owner.under_way;
    }
    Alone& owner;
    at::Tensor output, input;
  };
};

// Five parameters in four buckets: p4 | p3 p2 (exactly a bucket) | p1 (larger than one) | p0.
struct Queue {
  bool announces;
  layout::ParameterTable table;
  layout::BucketPlan plan;
  Alone alone;
  trace::Ledger ledger;
  Order delivered, asked;
  bool postpone = false, others_flush = true;  // what the other ranks say
  int64_t rounds_of_others = 0;
  Order announced;
  bool lost = false;  // the answer to what was announced
  std::function<void(bool)> then;
  std::vector<at::Tensor> sums;
  BucketQueue queue;

  explicit Queue(bool when_full, const std::vector<int64_t>& numels = {6, 25, 4, 6, 9},
                 int64_t bucket_size_numel = 10, bool overlaps = true, bool announce = false)
      : announces(announce),
        table(table_of(numels)),
        plan(table, 1, bucket_size_numel),
        sums(plan.buckets().size()),
        queue(
            plan, alone,
            {at::kFloat, at::kFloat, ReductionOrder::Pinned, when_full, {}, 1.0, false, overlaps},
            ledger,
            [this](std::size_t bucket, at::Tensor sum) {
              delivered.push_back(bucket);
              sums[bucket] = sum.clone();
            },
            [this](std::size_t bucket, int64_t rounds) {
              EXPECT_FALSE(then) << "what was announced comes first";
              asked.push_back(bucket);
              if (postpone && rounds == 0) return comm::Met{false, 0, 0, {}};
              return comm::Met{true,
                               others_flush ? rounds : 0,
                               others_flush ? std::max(rounds, rounds_of_others) : 0,
                               {}};
            },
            {}, announcing()) {}
  BucketQueue::Announcing announcing() {
    if (!announces) return {};
    return {[this](std::size_t bucket, std::function<void(bool)> told) {
              EXPECT_FALSE(then);
              announced.push_back(bucket);
              then = std::move(told);
            },
            [this] {
              if (lost) return;
              ASSERT_TRUE(then);
              std::exchange(then, nullptr)(!postpone);
            }};
  }
  void copy_in(std::size_t parameter, uint64_t seed) {
    queue.copy_in(parameter, sample(table[parameter].numel, seed), 1.0);
  }
  at::Tensor sum_of(std::size_t parameter) const {
    const auto where = *plan.slot_of(parameter);
    const auto& slot = plan.slot(where);
    return sums[where.bucket].narrow(0, slot.offset, slot.numel);
  }
};

const Order kInOrder{0, 1, 2, 3};

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
  EXPECT_EQ(it.asked, (Order{0, 2, 4}));
  EXPECT_EQ(it.delivered, (Order{0, 1, 2, 3}));
  it.queue.flush();
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
  EXPECT_EQ(it.asked, kInOrder);
  EXPECT_EQ(it.alone.under_way, 1) << "of four, three were waited for";
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
  EXPECT_EQ(it.announced, (Order{0, 1, 2, 3}));
  EXPECT_EQ(it.delivered, (Order{0, 1}));
  it.queue.flush();
  EXPECT_EQ(it.asked, Order{4}) << "all were announced before";
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
    it.queue.send_ahead(!discards);
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

TEST(BucketQueue, WhatIsFullMayLeaveAheadAllButTheLastGroup) {
  Queue it(false);
  it.queue.send_ahead(true);
  for (const std::size_t parameter : {0U, 4U, 3U, 2U}) it.copy_in(parameter, parameter + 1);
  EXPECT_EQ(it.queue.left_ahead(), 2U);
  it.copy_in(1, 2);
  EXPECT_EQ(it.asked, (Order{0, 1, 2}));
  EXPECT_EQ(it.queue.left_ahead(), 3U);
  EXPECT_EQ(it.delivered, (Order{0, 1})) << "one under way";
  const int64_t all_bytes = 4 * (9 + 10 + 25 + 6);
  EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), all_bytes) << "what was sent stays";
  it.queue.flush();
  EXPECT_EQ(it.asked, (Order{0, 1, 2, 3}));
  EXPECT_EQ(it.delivered, kInOrder);
  EXPECT_EQ(it.queue.left_ahead(), 0U);
  EXPECT_EQ(it.ledger.bytes(trace::Category::Buckets), 0);
  for (std::size_t parameter = 0; parameter < 5; ++parameter)
    EXPECT_THAT(it.sum_of(parameter),
                HasTheBitsOf(sample(it.table[parameter].numel, parameter + 1)));
}

TEST(BucketQueue, AGradientForWhatHasLeftAheadTakesAllBack) {
  for (const std::size_t parameter : {4U, 3U}) {  // that has arrived, or is under way
    Queue it(false);
    it.queue.send_ahead(true);
    for (const std::size_t each : {4U, 3U, 2U, 1U}) it.copy_in(each, each + 1);
    EXPECT_EQ(it.queue.left_ahead(), 3U);
    it.copy_in(parameter, 9);
    EXPECT_EQ(it.queue.left_ahead(), 0U);
    EXPECT_EQ(it.alone.under_way, 0);
    it.copy_in(0, 1);
    EXPECT_EQ(it.asked, (Order{0, 1, 2})) << "nothing more leaves ahead";
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
