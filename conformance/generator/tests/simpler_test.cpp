#include "conformance/generator/simpler.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

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
  EXPECT_EQ(one.execution.resumed_before, -1);
}

TEST(Simpler, RanksOfAMeshStillDivideItsCoreAndEndAtOne) {
  for (const int64_t n : {0, 1, 2, 3}) {
    const auto one = draw_case(5, mesh_workload(n), 1);
    for (const auto& simpler : simpler_than(one))
      if (simpler.workload.core)
        EXPECT_NO_THROW(generated_case(to_json(simpler))) << one.id << " " << to_json(simpler);
  }
  auto one = draw_case(5, mesh_workload(0), 0);
  int steps = 0;
  for (auto next = simpler_than(one); !next.empty(); next = simpler_than(one)) {
    one = next.back();
    ASSERT_LT(++steps, 4000);
  }
  EXPECT_EQ(one.workload.world, 1);
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

// No event is of a rank, step or micro-batch that went.
TEST(Simpler, EventsStayWithinTheirCase) {
  for (int64_t workload = 0; workload < 100; ++workload) {
    const auto one = draw_case(5, workload, static_cast<int>(workload % kExecutions));
    for (const auto& simpler : simpler_than(one)) {
      const auto& what = simpler.workload;
      const auto is_outside = [&](const auto& event) {
        return event.step >= what.steps || event.micro_batch >= what.accumulation;
      };
      for (const auto& pass : what.passes)
        EXPECT_FALSE(is_outside(pass) || pass.rank >= what.world) << one.id << " " << to_json(what);
      for (const auto& event : simpler.execution.events)
        EXPECT_FALSE(is_outside(event)) << one.id << " " << to_json(simpler);
      EXPECT_LT(simpler.execution.resumed_before, what.steps) << one.id << " " << to_json(simpler);
      for (const auto& rate : what.rates)
        EXPECT_LT(rate.step, what.steps) << one.id << " " << to_json(what);
    }
  }
}

// What is left out of some simpler case, alone.
TEST(Simpler, EveryTensorAndEveryKeyCanGoAlone) {
  GeneratedCase one;
  one.workload.groups.resize(1);
  for (const char* name : {"a", "b", "c", "d", "e"})
    one.workload.tensors.push_back({.name = name, .sizes = {3}});
  one.workload.config = {{"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}},
                         {"fp16", {{"enabled", true}, {"hysteresis", 3}}}};
  std::set<std::string> gone;
  for (const auto& simpler : simpler_than(one)) {
    std::string names;
    for (const auto& tensor : simpler.workload.tensors) names += tensor.name;
    for (const std::string name : {"a", "b", "c", "d", "e"})
      if (names.size() == 4 && names.find(name) == std::string::npos) gone.insert(name);
    for (const auto& change : nlohmann::json::diff(one.workload.config, simpler.workload.config))
      if (change.at("op") == "remove") gone.insert(change.at("path"));
  }
  EXPECT_EQ(gone, (std::set<std::string>{"a", "b", "c", "d", "e", "/fp16", "/fp16/enabled",
                                         "/fp16/hysteresis", "/optimizer/params",
                                         "/optimizer/params/lr"}));
}

}  // namespace
}  // namespace equigrad::conformance
