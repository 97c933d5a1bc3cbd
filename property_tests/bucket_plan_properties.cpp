// The invariants of layout/bucket_plan.hpp on generated tables, and exhaustively on tiny ones.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::layout {
namespace {

struct Case {
  std::vector<std::int64_t> numels;  // negative: frozen, of that many elements
  int shards = 1;
  std::int64_t bucket_size_numel = 1;
};

ParameterTable table_of(const Case& one) {
  std::vector<Registration> registrations;
  for (std::size_t i = 0; i < one.numels.size(); ++i) {
    const std::int64_t numel = one.numels[i];
    registrations.push_back(
        {"p" + std::to_string(i), &one.numels[i], {numel < 0 ? -numel : numel}, numel >= 0, 0});
  }
  return ParameterTable(registrations);
}

Case any_case() {
  Case one;
  one.numels = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::oneOf(
      rc::gen::inRange<std::int64_t>(-3, 12), rc::gen::inRange<std::int64_t>(0, 200)));
  one.shards = *rc::gen::inRange(1, 10);
  one.bucket_size_numel = *rc::gen::inRange<std::int64_t>(1, 150);
  return one;
}

// Empty if every invariant holds; else which one does not.
std::string every_parameter_has_exactly_one_slot(const Case& one) {
  const BucketPlan plan(table_of(one), one.shards, one.bucket_size_numel);
  std::vector<int> seen(one.numels.size(), 0);
  for (std::size_t b = 0; b < plan.buckets().size(); ++b)
    for (std::size_t s = 0; s < plan.buckets()[b].slots.size(); ++s) {
      const Slot& slot = plan.buckets()[b].slots[s];
      ++seen.at(slot.parameter);
      if (plan.slot_of(slot.parameter) != SlotLocation{b, s}) return "slot_of disagrees";
      if (slot.numel != one.numels[slot.parameter]) return "a slot has the wrong size";
    }
  for (std::size_t p = 0; p < seen.size(); ++p) {
    if (seen[p] != (one.numels[p] > 0 ? 1 : 0)) return "a parameter is missing or doubled";
    if (plan.slot_of(p).has_value() != (one.numels[p] > 0)) return "slot_of has one too many";
  }
  return "";
}

// Marks every element of every rank in a map of the plan's whole shard space.
std::string every_element_has_one_place(const Case& one) {
  const BucketPlan plan(table_of(one), one.shards, one.bucket_size_numel);
  const auto columns = static_cast<std::size_t>(plan.shard_numel());
  std::vector<int> marks(columns * static_cast<std::size_t>(one.shards), 0);
  std::int64_t padding = static_cast<std::int64_t>(marks.size());
  for (const Bucket& bucket : plan.buckets()) {
    if (bucket.slots.empty()) return "a bucket is empty";
    for (const Slot& slot : bucket.slots) {
      if (slot.offset + slot.shard_numel > bucket.shard_numel) return "a slot leaves its row";
      const Partition partition(slot.numel, one.shards);
      if (partition.shard_numel() != slot.shard_numel) return "a slot has the wrong columns";
      for (std::int64_t element = 0; element < slot.numel; ++element) {
        const int rank = partition.owner_of(element);
        const std::int64_t column =
            bucket.offset + slot.offset + element - partition.range(rank).begin;
        ++marks.at(static_cast<std::size_t>(rank) * columns + static_cast<std::size_t>(column));
      }
      padding -= slot.numel;
    }
  }
  std::int64_t unmarked = 0;
  for (const int mark : marks) {
    if (mark > 1) return "two elements share a place";
    if (mark == 0) ++unmarked;
  }
  return unmarked == padding ? "" : "an element has no place";
}

// In the order of the plan: reverse registration, each bucket as full as the limit allows.
std::string buckets_are_filled_greedily(const Case& one) {
  const BucketPlan plan(table_of(one), one.shards, one.bucket_size_numel);
  std::size_t last = one.numels.size();
  std::int64_t before = one.bucket_size_numel;  // elements in the bucket before this one
  for (const Bucket& bucket : plan.buckets()) {
    std::int64_t total = 0;
    for (const Slot& slot : bucket.slots) {
      if (slot.parameter >= last) return "not in reverse registration order";
      last = slot.parameter;
      total += slot.numel;
    }
    if (total > one.bucket_size_numel && bucket.slots.size() > 1) return "a bucket is too full";
    if (before + bucket.slots.front().numel <= one.bucket_size_numel) return "a bucket had room";
    before = total;
  }
  return "";
}

std::string grouping_ignores_the_shards(const Case& one) {
  const ParameterTable table = table_of(one);
  const BucketPlan sharded(table, one.shards, one.bucket_size_numel);
  const BucketPlan whole(table, 1, one.bucket_size_numel);
  for (std::size_t p = 0; p < table.size(); ++p)
    if (sharded.slot_of(p) != whole.slot_of(p)) return "the grouping depends on the shards";
  return "";
}

std::string every_invariant(const Case& one) {
  return every_parameter_has_exactly_one_slot(one) + every_element_has_one_place(one) +
         buckets_are_filled_greedily(one) + grouping_ignores_the_shards(one);
}

RC_GTEST_PROP(BucketPlan, EveryTrainableParameterHasExactlyOneSlot, ()) {
  RC_ASSERT(every_parameter_has_exactly_one_slot(any_case()) == "");
}

RC_GTEST_PROP(BucketPlan, EveryElementHasOnePlaceAndTheRestIsPadding, ()) {
  RC_ASSERT(every_element_has_one_place(any_case()) == "");
}

RC_GTEST_PROP(BucketPlan, BucketsAreFilledInReverseOrderUpToTheLimit, ()) {
  RC_ASSERT(buckets_are_filled_greedily(any_case()) == "");
}

RC_GTEST_PROP(BucketPlan, TheGroupingDoesNotDependOnTheShards, ()) {
  RC_ASSERT(grouping_ignores_the_shards(any_case()) == "");
}

// Every table of up to four parameters of -1 (frozen) to 3 elements, 1-4 shards, buckets of 1-5.
TEST(BucketPlanExhaustively, EveryInvariantHoldsInSmallWorlds) {
  int cases = 0;
  for (int length = 0; length <= 4; ++length) {
    int tables = 1;
    for (int i = 0; i < length; ++i) tables *= 5;
    for (int code = 0; code < tables; ++code) {
      Case one;
      for (int i = 0, rest = code; i < length; ++i, rest /= 5) one.numels.push_back(rest % 5 - 1);
      for (one.shards = 1; one.shards <= 4; ++one.shards)
        for (one.bucket_size_numel = 1; one.bucket_size_numel <= 5; ++one.bucket_size_numel) {
          ASSERT_EQ(every_invariant(one), "") << testing::PrintToString(one.numels) << " shards "
                                              << one.shards << " bucket " << one.bucket_size_numel;
          ++cases;
        }
    }
  }
  EXPECT_EQ(cases, 781 * 4 * 5);
}

}  // namespace
}  // namespace equigrad::layout
