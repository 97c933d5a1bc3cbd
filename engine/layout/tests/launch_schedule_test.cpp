// Every way of a bucket through a window, by hand: which steps come when, and what there is of each
// bucket after them.
#include "engine/layout/launch_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace equigrad::layout {
namespace {

using Action = LaunchStep::Action;

// So many buckets, in groups of so many; the last may be shorter.
BucketPlan plan_of(std::size_t buckets, std::size_t group = 1) {
  std::vector<std::int64_t> numels(buckets, kAloneNumel);
  std::vector<Registration> registrations;
  for (std::size_t i = 0; i < buckets; ++i)
    registrations.push_back({"p" + std::to_string(i), &numels[i], {numels[i]}, true, 0});
  return BucketPlan(ParameterTable(registrations), 1,
                    kAloneNumel * static_cast<std::int64_t>(group));
}

// What is done, as text: a(nnounce), h(ear), o(pen), l(aunch), d(eliver), r(elease), and the
// bucket.
struct Played {
  BucketPlan plan;
  LaunchSchedule schedule;
  bool answers_at_once = false;
  LaunchAnswer answer = LaunchAnswer::Together;

  Played(bool when_full, bool overlaps, std::size_t buckets, std::size_t group = 1)
      : plan(plan_of(buckets, group)), schedule(plan, when_full, overlaps) {}
  std::string run() {
    std::string text;
    while (const auto step = schedule.next()) {
      text += (text.empty() ? "" : " ") + std::string(1, "aholdr"[static_cast<int>(step->action)]) +
              std::to_string(step->bucket);
      const bool asks = step->action == Action::Announce && answers_at_once;
      if (!asks && step->action != Action::Hear) continue;
      schedule.answer(answer);
      if (const auto more = run(); !more.empty()) text += " " + more;
    }
    return text;
  }
  std::string fill(std::size_t bucket, bool is_full = true) {
    schedule.fill(bucket, is_full);
    return run();
  }
  std::string flush() {
    schedule.flush();
    return run();
  }
  // - empty, f filling, F full, s sent, S sent and kept, k arrived and kept, . arrived
  std::string states() const {
    std::string text;
    for (std::size_t bucket = 0; bucket < plan.buckets().size(); ++bucket)
      text += "-fFsSk."[static_cast<int>(schedule.state(bucket))];
    return text;
  }
};

TEST(LaunchSchedule, WhatIsAnnouncedIsHeardWhenOneMoreBucketIsFull) {
  Played it(true, true, 4);
  EXPECT_EQ(it.fill(0, false), "");
  EXPECT_EQ(it.states(), "f---");
  EXPECT_EQ(it.fill(0), "a0");
  EXPECT_EQ(it.fill(1, false), "") << "not full";
  EXPECT_EQ(it.fill(0), "") << "a second contribution to what is full already";
  EXPECT_EQ(it.fill(3), "h0 l0") << "whichever it is";
  EXPECT_EQ(it.states(), "sf-F");
  EXPECT_EQ(it.fill(1), "a1");
  EXPECT_EQ(it.fill(2), "h1 l1 d0 a2") << "the last is not announced";
  EXPECT_EQ(it.states(), ".sFF");
  EXPECT_EQ(it.schedule.phase(), LaunchPhase::Announced);
}

TEST(LaunchSchedule, AGroupThatIsFullAlreadyIsAReasonToHearTheOneBeforeIt) {
  Played it(true, true, 4);
  EXPECT_EQ(it.fill(1), "") << "not the next";
  EXPECT_EQ(it.fill(2), "") << "not the next";
  EXPECT_EQ(it.fill(0), "a0 h0 l0 a1 h1 l1 d0 a2");
  EXPECT_EQ(it.fill(3), "h2 l2 d1");
}

TEST(LaunchSchedule, AGroupLeavesWhole) {
  Played it(true, true, 5, 2);
  EXPECT_EQ(it.fill(1), "");
  EXPECT_EQ(it.fill(2), "");
  EXPECT_EQ(it.fill(0), "a0");
  EXPECT_EQ(it.fill(3), "h0 l0 l1 a2");
  EXPECT_EQ(it.fill(4), "h2 l2 l3 d0 d1") << "one group stays in flight";
  EXPECT_EQ(it.states(), "..ssF");
  EXPECT_EQ(it.flush(), "l4 d2 d3 d4");
}

TEST(LaunchSchedule, WithoutOverlapAGroupArrivesAtOnce) {
  Played it(true, false, 5, 2);
  it.answers_at_once = true;
  EXPECT_EQ(it.fill(0), "");
  EXPECT_EQ(it.fill(2), "");
  EXPECT_EQ(it.fill(3), "");
  EXPECT_EQ(it.fill(1), "a0 l0 l1 d0 d1 a2 l2 l3 d2 d3");
  EXPECT_EQ(it.flush(), "o4 l4 d4");
}

// And each once, in the plan's order, with at most two groups in flight.
TEST(LaunchSchedule, AllLeaveAndArriveInThePlansOrderForAnyOrderOfArrival) {
  constexpr std::size_t kBuckets = 6;
  for (const std::size_t group : {1U, 2U, 3U}) {
    for (const bool when_full : {true, false}) {
      std::vector<std::size_t> order(kBuckets);
      std::iota(order.begin(), order.end(), 0U);
      do {
        Played it(when_full, true, kBuckets, group);
        it.schedule.launch_eagerly(true);
        std::string text;
        for (const std::size_t bucket : order) text += it.fill(bucket) + " ";
        text += it.flush();
        std::string launched, delivered;
        for (std::size_t at = 0; at < text.size(); ++at) {
          if (text[at] == 'l') launched += text[at + 1];
          if (text[at] == 'd') delivered += text[at + 1];
          ASSERT_LE(launched.size() - delivered.size(), 2 * group) << text;
        }
        ASSERT_EQ(launched, "012345") << text;
        ASSERT_EQ(delivered, "012345") << text;
        ASSERT_EQ(it.states(), "------");
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST(LaunchSchedule, WhatWaitsLeavesInTheFlushOpenedIfItIsEmpty) {
  Played it(false, true, 3);
  EXPECT_EQ(it.fill(0), "");
  EXPECT_EQ(it.fill(2, false), "");
  EXPECT_EQ(it.flush(), "l0 o1 l1 d0 l2 d1 d2");
  EXPECT_EQ(it.states(), "---");
  EXPECT_EQ(it.schedule.launched(), 0U);
  EXPECT_EQ(it.fill(0), "") << "and waits again";
  EXPECT_EQ(it.flush(), "l0 o1 l1 d0 o2 l2 d1 d2");
}

TEST(LaunchSchedule, WithoutBucketsNothingIsToBeDone) {
  Played it(true, true, 0);
  EXPECT_EQ(it.run(), "");
  EXPECT_EQ(it.flush(), "");
}

TEST(LaunchSchedule, AnnouncedAgainAfterAFlush) {
  Played it(true, true, 2);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(it.fill(0), "a0");
    it.schedule.answer(LaunchAnswer::Together);
    EXPECT_EQ(it.run(), "l0");
    EXPECT_EQ(it.flush(), "o1 l1 d0 d1");
  }
}

// Whoever hears the answer is told of that group only: what is to be said next is another call.
TEST(LaunchSchedule, AStopFollowsEveryGroupThatHasLeft) {
  Played it(true, true, 3);
  it.schedule.fill(0, true);
  it.schedule.fill(1, true);
  EXPECT_EQ(it.schedule.next(), (LaunchStep{Action::Announce, 0}));
  it.schedule.answer(LaunchAnswer::Together);
  EXPECT_EQ(it.schedule.next(), (LaunchStep{Action::Launch, 0}));
  EXPECT_EQ(it.schedule.next(), std::nullopt);
  EXPECT_EQ(it.schedule.next(), (LaunchStep{Action::Announce, 1}));
}

TEST(LaunchSchedule, WhatIsPostponedWaitsForTheFlushAndSoDoThoseAfterIt) {
  Played it(true, true, 4);
  it.answer = LaunchAnswer::Postponed;
  EXPECT_EQ(it.fill(0), "a0");
  EXPECT_EQ(it.fill(1), "h0");
  EXPECT_EQ(it.schedule.phase(), LaunchPhase::Waiting);
  EXPECT_EQ(it.fill(2), "");
  EXPECT_EQ(it.flush(), "l0 l1 d0 l2 d1 o3 l3 d2 d3");
  EXPECT_EQ(it.fill(0), "a0") << "until then";
}

TEST(LaunchSchedule, WithoutAnAnswerItIsAnnouncedAgain) {
  Played it(true, true, 2);
  EXPECT_EQ(it.fill(0), "a0");
  it.schedule.answer(LaunchAnswer::Lost);
  EXPECT_EQ(it.run(), "a0");
}

TEST(LaunchSchedule, AnswersMayComeUnaskedWhereOthersAreFull) {
  Played it(true, true, 3);
  it.schedule.answer(LaunchAnswer::Together);
  EXPECT_EQ(it.run(), "o0 l0");
  it.schedule.answer(LaunchAnswer::Together);
  EXPECT_EQ(it.run(), "o1 l1 d0");
  it.schedule.answer(LaunchAnswer::Together);
  EXPECT_EQ(it.run(), "o2 l2 d1");
  EXPECT_EQ(it.schedule.launched(), 3U);
  EXPECT_EQ(it.flush(), "d2");
}

TEST(LaunchSchedule, WhatLeavesEagerlyKeepsItsBufferUntilTheFlush) {
  Played it(false, true, 4);
  it.schedule.launch_eagerly(true);
  it.answers_at_once = true;
  EXPECT_EQ(it.fill(0), "a0 l0");
  EXPECT_EQ(it.states(), "S---");
  EXPECT_EQ(it.fill(1), "a1 l1 d0");
  EXPECT_EQ(it.fill(2), "a2 l2 d1");
  EXPECT_EQ(it.states(), "kkS-");
  EXPECT_EQ(it.fill(3), "") << "the last group goes with the flush";
  it.schedule.flush();
  EXPECT_EQ(it.schedule.next(), (LaunchStep{Action::Release, 0}));
  EXPECT_EQ(it.states(), ".kSF");
  EXPECT_EQ(it.schedule.next(), (LaunchStep{Action::Release, 1}));
  EXPECT_EQ(it.schedule.next(), (LaunchStep{Action::Launch, 3}));
  EXPECT_EQ(it.states(), "..Ss") << "what leaves in a flush is not kept";
  EXPECT_EQ(it.schedule.next(), (LaunchStep{Action::Deliver, 2}));
  EXPECT_EQ(it.states(), "...s") << "its buffer goes when it has arrived";
  EXPECT_EQ(it.run(), "d3");
  it.schedule.launch_eagerly(true);
  EXPECT_EQ(it.fill(0), "a0 l0");
  EXPECT_EQ(it.fill(1), "a1 l1 d0");
  EXPECT_EQ(it.flush(), "r0 o2 l2 d1 o3 l3 d2 d3") << "in the next window too";
}

TEST(LaunchSchedule, EagerLaunchesBeginAndEndWhereTheyAreToldTo) {
  Played it(false, true, 4);
  it.answers_at_once = true;
  EXPECT_EQ(it.fill(0), "");
  it.schedule.launch_eagerly(true);
  EXPECT_EQ(it.run(), "a0 l0") << "what is full already, too";
  it.schedule.launch_eagerly(false);
  EXPECT_EQ(it.fill(1), "");
  EXPECT_EQ(it.flush(), "l1 d0 o2 l2 d1 o3 l3 d2 d3");
  EXPECT_EQ(it.fill(0), "") << "and a flush ends them";
}

TEST(LaunchSchedule, ThoseThatLeaveWhenFullAreNotEager) {
  for (const bool eager : {true, false}) {
    Played it(true, true, 2);
    it.schedule.launch_eagerly(eager);
    EXPECT_EQ(it.fill(0), "a0");
    it.schedule.answer(LaunchAnswer::Together);
    EXPECT_EQ(it.run(), "l0");
    EXPECT_EQ(it.states(), "s-") << "nothing is kept";
  }
}

TEST(LaunchSchedule, EagerLaunchesDoNotEndWhileAnAnswerIsExpected) {
  Played it(false, true, 3);
  it.schedule.launch_eagerly(true);
  EXPECT_EQ(it.fill(0), "a0");
  it.schedule.launch_eagerly(false);
  EXPECT_EQ(it.schedule.phase(), LaunchPhase::Announced);
}

TEST(LaunchSchedule, WhatIsTakenBackIsFullAndWaitsForTheFlush) {
  Played it(false, true, 4);
  it.schedule.launch_eagerly(true);
  it.answers_at_once = true;
  it.fill(0);
  it.fill(1);
  it.fill(3, false);
  EXPECT_EQ(it.states(), "kS-f");
  it.schedule.take_back();
  EXPECT_EQ(it.states(), "FF-f");
  EXPECT_EQ(it.schedule.launched(), 0U);
  EXPECT_EQ(it.fill(2), "") << "nothing more leaves eagerly";
  EXPECT_EQ(it.flush(), "l0 l1 d0 l2 d1 l3 d2 d3");
}

TEST(LaunchSchedule, WhatIsAbandonedIsEmpty) {
  for (const bool when_full : {true, false}) {
    Played it(when_full, true, 4);
    it.schedule.launch_eagerly(true);
    for (const std::size_t bucket : {0U, 1U, 2U}) it.fill(bucket);
    EXPECT_EQ(it.states(), when_full ? ".sF-" : "kSF-");
    it.schedule.clear();
    EXPECT_EQ(it.states(), "----");
    EXPECT_EQ(it.schedule.launched(), 0U);
    EXPECT_EQ(it.fill(0), when_full ? "a0" : "");
  }
}

}  // namespace
}  // namespace equigrad::layout
