// Shrinking finds the smallest case of a failure whose conditions are known, always the same one.
#include "conformance/diagnosis/shrink.hpp"

#include <gmock/gmock.h>

#include <set>

namespace equigrad::conformance {
namespace {

Candidate large() {
  return {{3, Precision::Fp16, Style::TensorBackward, 4, 4, Clip::AboveInf, Rule::AdamW, "gpt"}, 3};
}

TEST(Shrink, WhatAlwaysFailsBecomesTheSimplestCase) {
  const auto shrunk = shrink(large(), [](const Candidate&) { return true; });
  EXPECT_EQ(
      shrunk.smallest.name(),
      "Required.grad.zero0.fp32.w1.accumulation1.clip-off.sgd.linear1.engine_backward --steps 1");
  EXPECT_EQ(shrunk.tried, 9);  // one a dimension
  EXPECT_EQ(path_between(large(), shrunk.smallest),
            "3 steps -> 1, model gpt -> linear1, 4 ranks -> 1, 4 micro-batches -> 1, fp16 -> fp32, "
            "clip-above-inf -> clip-off, adamw -> sgd, tensor_backward -> engine_backward, "
            "stage 3 -> 0");
}

TEST(Shrink, WhatFailsNowhereElseStaysAsItIs) {
  const auto shrunk = shrink(large(), [](const Candidate&) { return false; });
  EXPECT_EQ(shrunk.smallest.name(), large().name());
  EXPECT_EQ(path_between(large(), shrunk.smallest), "");
}

// Two dimensions that have to change one after the other, against the order of dimensions: three
// micro-batches are needed by more than two steps alone.
TEST(Shrink, GoesOnUntilNoDimensionCanBeSimplerAndTriesNothingTwice) {
  std::set<std::string> seen;
  const auto shrunk = shrink(large(), [&](const Candidate& candidate) {
    EXPECT_TRUE(seen.insert(candidate.name()).second) << candidate.name();
    const bool few = candidate.spec.stage == 0 || candidate.steps > 1;
    return std::optional(few && candidate.spec.world >= 2 && candidate.spec.accumulation >= 3 &&
                         candidate.spec.precision != Precision::Fp32);
  });
  EXPECT_EQ(
      shrunk.smallest.name(),
      "Required.grad.zero0.bf16.w2.accumulation3.clip-off.sgd.linear1.engine_backward --steps 1");
  EXPECT_EQ(static_cast<std::size_t>(shrunk.tried), seen.size());
}

TEST(Shrink, StopsWithTheBestSoFar) {
  int left = 3;
  const auto shrunk = shrink(large(), [&](const Candidate&) -> std::optional<bool> {
    return left-- > 0 ? std::optional(true) : std::nullopt;
  });
  EXPECT_TRUE(shrunk.stopped);
  EXPECT_EQ(path_between(large(), shrunk.smallest),
            "3 steps -> 1, model gpt -> linear1, 4 ranks -> 1");
}

}  // namespace
}  // namespace equigrad::conformance
