// A fault that ends its case is told, and counts as not caught: it is no evidence of a comparison.
#include "conformance/check/own_faults.hpp"

#include <gmock/gmock.h>

#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ::testing::StartsWith;

json ended_by_every_fault(const json& request, ranks::RankContext& /*context*/) {
  if (request.contains("fault")) throw Error("engine.step", "expected finite gradients.");
  return {};
}

TEST(OwnFaults, OneThatEndsTheCaseIsToldAndNotCaught) {
  ProcessSlots slots({.slots = 1, .widest = 2, .serve = ended_by_every_fault});
  const CheckCase ground{
      parse_id("Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward")};
  const auto checks = plant_own_faults(slots, ground, [](const char* what) {
    return json{{"do", what}};
  });
  ASSERT_EQ(checks.size(), kOwnFaults);
  for (const auto& check : checks) {
    EXPECT_FALSE(check.caught) << check.fault;
    EXPECT_THAT(check.by, StartsWith("nothing: the case ended early: "));
  }
}

}  // namespace
}  // namespace equigrad::conformance
