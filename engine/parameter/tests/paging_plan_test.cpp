// No schedule gathers less than the plan, or than the plan says: every schedule of every small
// trace.
#include "engine/parameter/paging_plan.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace equigrad::parameter {
namespace {

using Uses = std::vector<std::size_t>;
using Sizes = std::vector<int64_t>;

// What a choice of pages to keep gathers; nothing if it does not fit.
int64_t gathered(const Uses& uses, const Sizes& sizes, int64_t budget, unsigned choice) {
  constexpr int64_t kUnfit = std::numeric_limits<int64_t>::max();
  std::vector<bool> kept(sizes.size(), false);
  int64_t sum = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (!kept[uses[i]]) sum += sizes[uses[i]];
    int64_t live = sizes[uses[i]];
    for (std::size_t page = 0; page < sizes.size(); ++page)
      if (kept[page] && page != uses[i]) live += sizes[page];
    if (live > budget && live > sizes[uses[i]]) return kUnfit;
    kept[uses[i]] = (choice >> i & 1U) != 0;
  }
  return sum;
}

int64_t best(const Uses& uses, const Sizes& sizes, int64_t budget) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (unsigned choice = 0; choice < (1U << uses.size()); ++choice)
    least = std::min(least, gathered(uses, sizes, budget, choice));
  return least;
}

// Every trace of `length` uses of the pages.
template <class Check>
void each_trace(std::size_t length, std::size_t pages, Check check) {
  std::size_t count = 1;
  for (std::size_t i = 0; i < length; ++i) count *= pages;
  for (std::size_t number = 0; number < count; ++number) {
    Uses uses;
    for (std::size_t i = 0, rest = number; i < length; ++i, rest /= pages)
      uses.push_back(rest % pages);
    check(uses);
  }
}

void expect_fits(const Sizes& sizes, const Uses& uses, int64_t budget, const PagingPlan& plan) {
  for (std::size_t i = 0; i < uses.size(); ++i)
    EXPECT_LE(plan.live_numel[i], std::max(budget, sizes[uses[i]]));
}

// What the plan itself gathers, and whether it keeps to the budget.
void expect_plan(const Uses& uses, const Sizes& sizes, int64_t budget, const PagingPlan& plan) {
  unsigned choice = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) choice |= (plan.stays[i] ? 1U : 0U) << i;
  EXPECT_EQ(gathered(uses, sizes, budget, choice), plan.gathered_numel);
  expect_fits(sizes, uses, budget, plan);
}

TEST(PagingPlan, OfPagesOfOneSizeIsTheBestScheduleOfAll) {
  for (const int64_t budget : {1, 2, 3, 4})
    each_trace(6, 4, [&](const Uses& uses) {
      const Sizes sizes(4, 1);
      const auto plan = plan_paging(uses, sizes, budget);
      expect_plan(uses, sizes, budget, plan);
      EXPECT_EQ(plan.gathered_numel, best(uses, sizes, budget));
      EXPECT_EQ(plan.least_numel, plan.gathered_numel);
    });
}

TEST(PagingPlan, OfSeveralSizesIsTheBestScheduleOfAll) {
  for (const auto& sizes : {Sizes{1, 3, 4}, Sizes{2, 3, 5}, Sizes{7, 1, 1}})
    for (const int64_t budget : {1, 4, 5, 6, 7, 8, 9, 100})
      each_trace(7, 3, [&](const Uses& uses) {
        const auto plan = plan_paging(uses, sizes, budget);
        expect_plan(uses, sizes, budget, plan);
        EXPECT_EQ(plan.gathered_numel, best(uses, sizes, budget));
        EXPECT_EQ(plan.least_numel, plan.gathered_numel);
      });
}

// There and back, as a forward and a backward pass: everything is wanted twice.
Uses there_and_back(std::size_t pages) {
  Uses uses;
  for (std::size_t page = 0; page < pages; ++page) uses.push_back(page);
  for (std::size_t page = pages; page-- > 0;) uses.push_back(page);
  return uses;
}

TEST(PagingPlan, WithoutTimeSaysWhatItHasAndWhatIsProven) {
  const Sizes sizes = {5, 7, 11, 4, 9, 6, 10, 3};
  const auto uses = there_and_back(sizes.size());
  for (int64_t budget = 3; budget < 60; ++budget) {
    const auto proven = plan_paging(uses, sizes, budget);
    expect_plan(uses, sizes, budget, proven);
    EXPECT_EQ(proven.least_numel, proven.gathered_numel);
    EXPECT_EQ(proven.gathered_numel, best(uses, sizes, budget));
    const auto hasty = plan_paging(uses, sizes, budget, 0);
    expect_plan(uses, sizes, budget, hasty);
    EXPECT_LE(hasty.least_numel, proven.gathered_numel);
    EXPECT_GE(hasty.gathered_numel, proven.gathered_numel);
  }
}

TEST(PagingPlan, OfALargeTraceIsAPlanToo) {
  Sizes sizes;
  for (int64_t i = 0; i < 400; ++i) sizes.push_back(1000 + i * i * 7919 % 90'000);
  const auto uses = there_and_back(sizes.size());
  const auto plan = plan_paging(uses, sizes, 3'000'000);
  expect_fits(sizes, uses, 3'000'000, plan);
  EXPECT_LE(plan.least_numel, plan.gathered_numel);
}

TEST(PagingPlan, KeepsWhatIsUsedSoonest) {
  const auto plan = plan_paging({0, 1, 2, 1, 0}, {10, 10, 10}, 20);
  EXPECT_EQ(plan.stays, (std::vector<bool>{false, true, false, false, false}));
  EXPECT_EQ(plan.live_numel, (std::vector<int64_t>{10, 10, 20, 10, 10}));
  EXPECT_EQ(plan.gathered_numel, 40);
}

TEST(PagingPlan, WhatIsWholeAllTheTimeCostsNothing) {
  const auto plan = plan_paging({0, 1, 0, 1}, {0, 10}, 10);
  EXPECT_EQ(plan.gathered_numel, 10);
  EXPECT_EQ(plan.stays, (std::vector<bool>{true, true, false, false}));
}

TEST(PagingPlan, OfNoUsesIsEmpty) {
  EXPECT_EQ(plan_paging({}, {1, 2}, 3).gathered_numel, 0);
  EXPECT_TRUE(plan_paging({}, {1, 2}, 3).stays.empty());
}

}  // namespace
}  // namespace equigrad::parameter
