#include "conformance/generator/simpler.hpp"

#include <gtest/gtest.h>

#include "conformance/generator/draw.hpp"

namespace equigrad::conformance {
namespace {

TEST(Simpler, NoneIsTheCaseItself) {
  for (int64_t workload = 0; workload < 100; ++workload) {
    const auto one = draw_case(5, workload, 0);
    for (const auto& simpler : simpler_than(one)) EXPECT_NE(to_json(simpler), to_json(one));
  }
}

TEST(Simpler, FollowingThemEndsAtTheSmallestCase) {
  auto one = draw_case(5, 3, 2);
  int steps = 0;
  for (auto next = simpler_than(one); !next.empty(); next = simpler_than(one)) {
    one = next.front();
    ASSERT_LT(++steps, 2000);
  }
  EXPECT_EQ(one.workload.world, 1);
  EXPECT_EQ(one.workload.steps, 1);
  EXPECT_EQ(one.workload.accumulation, 1);
  EXPECT_EQ(one.workload.tensors.size(), 1);
  EXPECT_TRUE(one.execution.knobs.empty());
  EXPECT_TRUE(one.execution.events.empty());
}

// An overflow stays with its tensor, or goes with it.
TEST(Simpler, EventsFollowTheTensorsTheyAreOf) {
  GeneratedCase one;
  one.workload.groups.resize(1);
  for (const char* name : {"a", "b", "c", "d"})
    one.workload.tensors.push_back({.name = name, .sizes = {3}});
  one.workload.passes = {{.what = "overflow", .rank = 0, .tensor = 2, .element = 1}};
  for (const auto& simpler : simpler_than(one)) {
    for (const auto& event : simpler.workload.passes) {
      const auto& tensors = simpler.workload.tensors;
      ASSERT_LT(static_cast<std::size_t>(event.tensor), tensors.size());
      EXPECT_EQ(tensors[static_cast<std::size_t>(event.tensor)].name, "c");
    }
  }
}

}  // namespace
}  // namespace equigrad::conformance
