#include "conformance/campaigns/slots.hpp"

#include <gtest/gtest.h>

namespace equigrad::conformance {
namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;

TEST(Slots, OneMoreThanThereAreCores) {
  EXPECT_EQ(slots_for(2, 24 * kGibibyte, 4), 3u);
  EXPECT_EQ(slots_for(0, 24 * kGibibyte, 4), 2u) << "the number of cores is unknown";
}

TEST(Slots, AsManyAsFitIntoMemory) {
  EXPECT_EQ(slots_for(128, 8 * kRankBytes, 4), 2u);
  EXPECT_EQ(slots_for(128, 8 * kRankBytes, 2), 4u);
  EXPECT_EQ(slots_for(128, 8 * kRankBytes - 1, 2), 3u);
}

TEST(Slots, OneAtLeastAndNoLimitWhereNoneCanBeRead) {
  EXPECT_EQ(slots_for(2, 1, 4), 1u);
  EXPECT_EQ(slots_for(128, 0, 4), 129u);
}

TEST(Slots, TheMachineSaysHowMuchIsFree) { EXPECT_GT(available_memory_bytes(), kRankBytes); }

}  // namespace
}  // namespace equigrad::conformance
