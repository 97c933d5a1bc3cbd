// The trace learns one cycle of uses and predicts the next.
#include "engine/parameter/use_trace.hpp"

#include <gtest/gtest.h>

namespace equigrad::parameter {
namespace {

using Pages = std::vector<std::size_t>;
constexpr int64_t kNoLimit = 1000;

UseTrace trace_of(const Pages& cycle) {
  UseTrace trace({1, 10, 100});
  for (const auto page : cycle) trace.use(page);
  trace.end_cycle();
  return trace;
}

TEST(UseTrace, KnowsNothingBeforeItsFirstCycleEnds) {
  UseTrace trace({1, 10, 100});
  EXPECT_FALSE(trace.in_step());
  trace.use(0);
  EXPECT_FALSE(trace.in_step());
  trace.end_cycle();
  EXPECT_TRUE(trace.in_step());
  EXPECT_FALSE(trace_of({}).in_step());
}

TEST(UseTrace, PredictsTheNextDistinctPagesWithinTheBudget) {
  auto trace = trace_of({0, 1, 0, 2, 1});
  EXPECT_EQ(trace.next_pages(kNoLimit), (Pages{0, 1, 2}));
  EXPECT_EQ(trace.next_pages(11), (Pages{0, 1}));
  EXPECT_EQ(trace.next_pages(10), (Pages{0}));
  EXPECT_EQ(trace.next_pages(0), (Pages{}));
  trace.use(0);
  trace.use(1);
  EXPECT_TRUE(trace.in_step());
  EXPECT_EQ(trace.next_pages(kNoLimit), (Pages{0, 2, 1}));
}

TEST(UseTrace, UsesOfOnePageInARowAreOne) {
  auto trace = trace_of({0, 0, 1, 1, 1, 2});
  trace.use(0);
  trace.use(1);
  trace.use(1);
  trace.use(2);
  EXPECT_TRUE(trace.in_step());
  EXPECT_EQ(trace.next_pages(kNoLimit), (Pages{}));
}

TEST(UseTrace, AnUnexpectedUsePutsItOutOfStepUntilTheCycleEnds) {
  auto trace = trace_of({0, 1, 2});
  trace.use(0);
  trace.use(2);
  EXPECT_FALSE(trace.in_step());
  trace.use(1);
  EXPECT_FALSE(trace.in_step());
  trace.end_cycle();
  EXPECT_TRUE(trace.in_step());
  EXPECT_EQ(trace.next_pages(kNoLimit), (Pages{0, 2, 1})) << "learnt anew";
}

TEST(UseTrace, ACycleThatGoesOnOrStopsEarlyIsLearntAnew) {
  auto longer = trace_of({0, 1});
  for (const std::size_t page : std::vector<std::size_t>{0, 1, 2}) longer.use(page);
  EXPECT_FALSE(longer.in_step());
  longer.end_cycle();
  EXPECT_EQ(longer.next_pages(kNoLimit), (Pages{0, 1, 2}));
  auto shorter = trace_of({0, 1, 2});
  shorter.use(0);
  shorter.end_cycle();
  EXPECT_EQ(shorter.next_pages(kNoLimit), (Pages{0}));
}

TEST(UseTrace, ACycleWithoutUsesForgetsNothing) {
  auto trace = trace_of({0, 1});
  trace.end_cycle();
  EXPECT_TRUE(trace.in_step());
  EXPECT_EQ(trace.next_pages(kNoLimit), (Pages{0, 1}));
}

// Room for 120: while 2 is used, 0 and 1 cannot both stay, and 1 is used later.
TEST(UseTrace, PlansWhatStaysUnderTheBudget) {
  UseTrace trace({15, 10, 100}, {}, 120);
  for (const std::size_t page : Pages{0, 1, 2, 0, 1}) trace.use(page);
  trace.end_cycle();
  EXPECT_EQ(trace.plan().gathered_numel, 15 + 10 + 100 + 10);
  EXPECT_EQ(trace.next_pages(kNoLimit), (Pages{0, 1})) << "2 has no room beside 0 and 1";
  trace.use(0);
  EXPECT_TRUE(trace.stays(0));
  trace.use(1);
  EXPECT_FALSE(trace.stays(1));
  EXPECT_EQ(trace.next_pages(kNoLimit), (Pages{2, 0})) << "1 has no room until 2 is gone";
  trace.use(2);
  trace.use(0);
  EXPECT_FALSE(trace.stays(0));
  EXPECT_EQ(trace.next_pages(kNoLimit), (Pages{1}));
}

TEST(UseTrace, WhatIsAlwaysWholeTakesRoomFromTheOthers) {
  UseTrace trace({15, 10, 100}, {false, false, true}, 120);
  for (const std::size_t page : Pages{0, 1, 2, 0, 1}) trace.use(page);
  trace.end_cycle();
  EXPECT_EQ(trace.plan().gathered_numel, 15 + 10 + 15 + 10);
}

TEST(UseTrace, KnowsHowFarTheNextUseIs) {
  auto trace = trace_of({0, 1, 2, 0, 1});
  trace.use(0);
  EXPECT_EQ(trace.reuse_distance_numel(0), 110);
  trace.use(1);
  EXPECT_EQ(trace.reuse_distance_numel(1), 101);
  EXPECT_EQ(trace.reuse_distance_numel(0), 110) << "from its own last use";
  trace.use(2);
  EXPECT_EQ(trace.reuse_distance_numel(2), UseTrace::kNever);
  trace.use(0);
  EXPECT_EQ(trace.reuse_distance_numel(0), UseTrace::kNever);
}

}  // namespace
}  // namespace equigrad::parameter
