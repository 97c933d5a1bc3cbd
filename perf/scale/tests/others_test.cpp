// What others send in a step, by hand.
#include "perf/scale/others.hpp"

#include <gtest/gtest.h>

namespace equigrad::perf {
namespace {

constexpr int64_t kMiB = 1 << 20;
const Network kNetwork;

// In elements: 0.25 Mi close the first bucket, 6.25 Mi each later one.
TEST(Others, DdpHasBucketsOfOneAndOfTwentyFiveMebibytes) {
  EXPECT_EQ(ddp_step({10}, 2, kNetwork).collectives, 1);
  EXPECT_EQ(ddp_step({10, kMiB / 4}, 2, kNetwork).collectives, 2);
  EXPECT_EQ(ddp_step({10, kMiB / 4 - 1}, 2, kNetwork).collectives, 1) << "both fill the first";
  const auto step = ddp_step({kMiB, 25 * kMiB / 4, kMiB / 4}, 4, kNetwork);
  EXPECT_EQ(step.collectives, 3);
  EXPECT_EQ(step.all.messages, 3 * 2 * 3);
  EXPECT_EQ(step.all.bytes, 2 * 3 * (4 * kMiB + 25 * kMiB + kMiB) / 4);
  EXPECT_EQ(step.held_bytes, 20 * (kMiB + 25 * kMiB / 4 + kMiB / 4));
}

TEST(Others, DeepSpeedReducesOnceAWindowAtStageOneAndInEveryPassLater) {
  const std::vector<int64_t> numels{400, 200'000};
  const int64_t ring = 3 * 200'400;  // bytes of a round of four ranks
  const auto sent = [&](int stage, int passes) {
    return deepspeed_step(stage, numels, passes, 4, kNetwork).all.bytes;
  };
  EXPECT_EQ(sent(1, 1), 3 * ring) << "all-reduce, all-gather";
  EXPECT_EQ(sent(1, 2), 3 * ring);
  EXPECT_EQ(sent(2, 1), 3 * ring);
  EXPECT_EQ(sent(2, 2), 5 * ring);
  EXPECT_EQ(sent(3, 1), 2 * ring) << "gathers of all, at two times, and a reduce-scatter";
  EXPECT_EQ(sent(3, 2), 2 * ring + 3 * 200'000 + ring);
}

TEST(Others, DeepSpeedHoldsWhatThePaperSays) {
  const std::vector<int64_t> numels{1000};
  const auto held = [&](int stage) {
    return deepspeed_step(stage, numels, 1, 4, kNetwork).held_bytes;
  };
  EXPECT_EQ(held(1), 4000 + 4000 + 12'000 / 4);
  EXPECT_EQ(held(2), 4000 + 4000 / 4 + 12'000 / 4);
  EXPECT_EQ(held(3), 20'000 / 4);
}

TEST(Others, LargeOnesAreGatheredTwiceAtStageThree) {
  const std::vector<int64_t> numels{600'000'000, 600'000'000};
  const auto step = deepspeed_step(3, numels, 1, 2, kNetwork);
  EXPECT_EQ(step.collectives, 2 * 24 + 2);
  EXPECT_EQ(step.all.bytes, 3 * 2 * 1'200'000'000LL);
}

}  // namespace
}  // namespace equigrad::perf
