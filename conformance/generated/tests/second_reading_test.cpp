#include "conformance/generated/second_reading.hpp"

#include <gtest/gtest.h>

#include "conformance/cases/recipe.hpp"
#include "conformance/generator/draw.hpp"

namespace equigrad::conformance {
namespace {

bool same(const reference::PrecisionSpec& a, const reference::PrecisionSpec& b) {
  const bool autocasts_alike =
      a.autocast.has_value() == b.autocast.has_value() &&
      (!a.autocast || (a.autocast->dtype == b.autocast->dtype &&
                       a.autocast->safe_modules == b.autocast->safe_modules));
  return a.master_dtype == b.master_dtype && a.state_dtype == b.state_dtype &&
         a.communication_dtype == b.communication_dtype && autocasts_alike &&
         a.loss_scale == b.loss_scale && a.averaging == b.averaging &&
         a.predivide_factor == b.predivide_factor && a.infinity_norm == b.infinity_norm;
}

// The engine's parser and the second reading, which share nothing, understand the same.
TEST(SecondReading, BothReadingsOfADrawnConfigurationAgree) {
  for (int64_t workload = 0; workload < 3000; ++workload) {
    const auto one = draw_case(4, workload, static_cast<int>(workload % kExecutions));
    const auto config = engine_config(one, 0.25);
    const auto read = read_again(config);
    const auto parsed = recipe_of(parse_config(config.dump(), one.workload.world),
                                  one.workload.world, one.workload.seed);
    const auto text = one.id + " " + config.dump();
    EXPECT_EQ(read.optimizer, parsed.optimizer) << text;
    EXPECT_EQ(read.gradient_clipping, parsed.gradient_clipping) << text;
    EXPECT_EQ(read.compute_dtype, parsed.compute_dtype) << text;
    EXPECT_EQ(read.accumulate_dtype, parsed.accumulate_dtype) << text;
    EXPECT_TRUE(same(read.precision, parsed.precision)) << text;
    EXPECT_EQ(read.order == reference::SumOrder::ExactGrid,
              parsed.order == reference::SumOrder::ExactGrid)
        << text;
    EXPECT_EQ(parsed.accumulation_steps, one.workload.accumulation) << text;
  }
}

// Names and defaults, by hand.
TEST(SecondReading, DefaultsAreDeepSpeeds) {
  const auto plain = read_again({{"optimizer", {{"type", "Adam"}}}});
  EXPECT_EQ(
      plain.optimizer,
      (reference::OptimizerSpec{
          .rule = reference::Rule::AdamW, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}));
  const auto torchs =
      read_again({{"optimizer", {{"type", "AdamW"}, {"params", {{"torch_adam", true}}}}}});
  EXPECT_EQ(torchs.optimizer.weight_decay, 0.01);
  const auto half = read_again({{"optimizer", {{"type", "SGD"}}}, {"fp16", {{"enabled", true}}}});
  EXPECT_EQ(half.precision.loss_scale.initial, 65536);
  EXPECT_EQ(half.precision.loss_scale.window, 1000);
  EXPECT_EQ(half.precision.loss_scale.hysteresis, 2);
  EXPECT_FALSE(half.precision.loss_scale.consecutive_hysteresis);
  const auto schedule =
      schedule_of({{"optimizer", {{"type", "SGD"}}},
                   {"scheduler",
                    {{"type", "OneCycle"},
                     {"params", {{"cycle_min_lr", {1e-3, 2e-3}}, {"cycle_max_lr", 0.1}}}}}});
  ASSERT_TRUE(schedule);
  EXPECT_EQ(schedule->cycle_min_lr, (std::vector<double>{1e-3, 2e-3}));
  EXPECT_EQ(schedule->cycle_max_lr, std::vector<double>{0.1});
  EXPECT_FALSE(schedule->cycle_momentum);
}

}  // namespace
}  // namespace equigrad::conformance
