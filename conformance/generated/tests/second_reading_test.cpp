#include "conformance/generated/second_reading.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <tuple>

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

// With what reference/schedule.hpp says of keys that are left out; only OneCycle has momenta.
reference::ScheduleSpec whole(reference::ScheduleSpec read) {
  using Kind = reference::ScheduleKind;
  if (read.kind == Kind::WarmupDecayLr && read.warmup_max_lr.empty()) read.warmup_max_lr = {0.001};
  if (read.kind == Kind::OneCycle) {
    read.cycle_second_step_size = read.cycle_second_step_size.value_or(read.cycle_first_step_size);
    read.cycle_second_stair_count =
        read.cycle_second_stair_count.value_or(read.cycle_first_stair_count);
  } else {
    read.cycle_momentum = true;
  }
  return read;
}

// Both have fields of the same names; 0 stands for total_num_steps that are left out.
bool same(const std::optional<reference::ScheduleSpec>& read,
          const std::optional<SchedulerConfig>& parsed) {
  if (!read || !parsed) return read.has_value() == parsed.has_value();
  const auto fields = [](const auto& one) {
    return std::tuple(
        static_cast<int>(one.kind), one.warmup_min_lr, one.warmup_max_lr, one.warmup_num_steps,
        static_cast<int>(one.warmup_type), one.warmup_min_ratio, one.cos_min_ratio,
        one.cycle_min_lr, one.cycle_max_lr, one.decay_lr_rate, one.cycle_first_step_size,
        one.cycle_second_step_size, one.cycle_first_stair_count, one.cycle_second_stair_count,
        one.decay_step_size, one.cycle_momentum, one.cycle_min_mom, one.cycle_max_mom,
        one.decay_mom_rate, one.lr_range_test_min_lr, one.lr_range_test_step_size,
        one.lr_range_test_step_rate, one.lr_range_test_staircase, one.last_batch_iteration);
  };
  return fields(whole(*read)) == fields(*parsed) &&
         read->total_num_steps.value_or(0) == parsed->total_num_steps;
}

// The engine's parser and the second reading, which share nothing, understand the same.
TEST(SecondReading, BothReadingsOfADrawnConfigurationAgree) {
  for (int64_t workload = 0; workload < 3000; ++workload) {
    const auto one = draw_case(4, workload, static_cast<int>(workload % kExecutions));
    const auto config = engine_config(one, 0.25);
    const auto read = read_again(config);
    const auto engines = parse_config(config.dump(), one.workload.world);
    const auto parsed = recipe_of(engines, one.workload.world, one.workload.seed);
    const auto text = one.id + " " + config.dump();
    EXPECT_EQ(read.optimizer, parsed.optimizer) << text;
    EXPECT_EQ(read.gradient_clipping, parsed.gradient_clipping) << text;
    EXPECT_EQ(read.compute_dtype, parsed.compute_dtype) << text;
    EXPECT_EQ(read.accumulate_dtype, parsed.accumulate_dtype) << text;
    EXPECT_TRUE(same(read.precision, parsed.precision)) << text;
    EXPECT_EQ(read.order == reference::SumOrder::ExactGrid,
              parsed.order == reference::SumOrder::ExactGrid)
        << text;
    EXPECT_TRUE(same(schedule_of(config), engines.scheduler)) << text;
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
