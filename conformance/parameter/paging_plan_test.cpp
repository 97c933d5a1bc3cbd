// No schedule of whole pages gathers less than the plan says, and of pages of one size none gathers
// less than the plan: every schedule of every small trace.
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

// What the plan itself gathers, and whether it keeps to the budget.
void expect_plan(const Uses& uses, const Sizes& sizes, int64_t budget, const PagingPlan& plan) {
  unsigned choice = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) choice |= (plan.stays[i] ? 1U : 0U) << i;
  EXPECT_EQ(gathered(uses, sizes, budget, choice), plan.gathered_numel);
  for (std::size_t i = 0; i < uses.size(); ++i)
    EXPECT_LE(plan.live_numel[i], std::max(budget, sizes[uses[i]]));
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

TEST(PagingPlan, OfSeveralSizesKnowsALeastThatNoScheduleIsBelow) {
  for (const int64_t budget : {1, 4, 5, 6, 7, 9, 100})
    each_trace(6, 3, [&](const Uses& uses) {
      const Sizes sizes = {1, 3, 4};
      const auto plan = plan_paging(uses, sizes, budget);
      expect_plan(uses, sizes, budget, plan);
      const auto least = best(uses, sizes, budget);
      EXPECT_LE(plan.least_numel, least);
      EXPECT_LE(least, plan.gathered_numel);
      if (budget >= 8) EXPECT_EQ(plan.gathered_numel, plan.least_numel) << "everything fits";
    });
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
