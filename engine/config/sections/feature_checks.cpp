#include <optional>
#include <type_traits>

#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

using Kind = SchedulerConfig::Kind;
using PerGroup = SchedulerConfig::PerGroup;

const std::string kParams = "scheduler.params.";

struct SchedulerChecks {
  const SchedulerConfig& scheduler;
  Checks& checks;

  void rates(const char* name, const PerGroup& values) const {
    for (const double value : values) checks.not_negative(kParams + name, value);
  }

  void given(const char* name, const PerGroup& values) const {
    if (values.empty())
      checks.problem(kParams + name,
                     "expected a number, or a list with one for each parameter group, got none. "
                     "Add the key.");
    rates(name, values);
  }

  void momenta(const char* name, const PerGroup& values) const {
    given(name, values);
    for (const double value : values)
      if (value >= 1.0)
        checks.problem(kParams + name,
                       "expected it below 1, got " + text_of(value) + ". Write 0.9.");
  }

  void warmup() const {
    const bool by_ratio = scheduler.kind == Kind::WarmupCosineLr;
    if (!by_ratio) given("warmup_min_lr", scheduler.warmup_min_lr);
    if (!by_ratio) rates("warmup_max_lr", scheduler.warmup_max_lr);
    if (by_ratio) {
      checks.not_negative(kParams + "warmup_min_ratio", scheduler.warmup_min_ratio);
      checks.not_negative(kParams + "cos_min_ratio", scheduler.cos_min_ratio);
    }
    const std::int64_t steps = scheduler.warmup_num_steps, total = scheduler.total_num_steps;
    checks.at_least(kParams + "warmup_num_steps", steps, 1);
    if (scheduler.kind == Kind::WarmupLr) return;
    const std::string path = kParams + "total_num_steps";
    if (total == 0)
      checks.problem(path,
                     "expected the number of updates of the whole training, got none. Add "
                     "the key.");
    else if (total < steps)
      checks.problem(path, "expected at least warmup_num_steps = " + std::to_string(steps) +
                               ", got " + std::to_string(total) + ". Raise it, or lower them.");
  }

  void one_cycle(bool is_sgd) const {
    given("cycle_min_lr", scheduler.cycle_min_lr);
    given("cycle_max_lr", scheduler.cycle_max_lr);
    checks.at_least(kParams + "cycle_first_step_size", scheduler.cycle_first_step_size, 1);
    checks.at_least(kParams + "cycle_second_step_size",
                    scheduler.cycle_second_step_size.value_or(0), 0);
    checks.at_least(kParams + "cycle_first_stair_count", scheduler.cycle_first_stair_count, 0);
    checks.at_least(kParams + "cycle_second_stair_count",
                    scheduler.cycle_second_stair_count.value_or(0), 0);
    checks.at_least(kParams + "decay_step_size", scheduler.decay_step_size, 0);
    checks.not_negative(kParams + "decay_lr_rate", scheduler.decay_lr_rate);
    checks.not_negative(kParams + "decay_mom_rate", scheduler.decay_mom_rate);
    momenta("cycle_min_mom", scheduler.cycle_min_mom);
    momenta("cycle_max_mom", scheduler.cycle_max_mom);
    if (is_sgd && scheduler.cycle_momentum)
      checks.problem(kParams + "cycle_momentum",
                     "expected false for SGD, got true. Only Adam's first beta is cycled, as in "
                     "DeepSpeed; set it to false, or use Adam.");
  }

  void range_test() const {
    given("lr_range_test_min_lr", scheduler.lr_range_test_min_lr);
    checks.at_least(kParams + "lr_range_test_step_size", scheduler.lr_range_test_step_size, 1);
    checks.not_negative(kParams + "lr_range_test_step_rate", scheduler.lr_range_test_step_rate);
  }

  // Sums of two of them must fit in 64 bits, and each must be exact in a double.
  void sizes() const {
    constexpr std::int64_t kMost = std::int64_t{1} << 53;
    for_each_parameter(scheduler, [this](const char* name, const auto& value) {
      std::optional<std::int64_t> count;
      if constexpr (std::is_convertible_v<decltype(value), std::optional<std::int64_t>> &&
                    !std::is_same_v<std::decay_t<decltype(value)>, double> &&
                    !std::is_same_v<std::decay_t<decltype(value)>, bool>)
        count = value;
      if (count && *count > kMost)
        checks.problem(kParams + name, "expected at most 2^53, got " + std::to_string(*count) +
                                           ". Give a smaller whole number.");
    });
    checks.at_least(kParams + "last_batch_iteration", scheduler.last_batch_iteration, -1);
  }
};

}  // namespace

void check_features(const EngineConfig& config, Checks& checks) {
  if (config.scheduler) {
    const SchedulerChecks scheduler{*config.scheduler, checks};
    if (config.scheduler->kind == Kind::OneCycle)
      scheduler.one_cycle(config.optimizer.kind == OptimizerConfig::Kind::Sgd);
    else if (config.scheduler->kind == Kind::LrRangeTest)
      scheduler.range_test();
    else
      scheduler.warmup();
    scheduler.sizes();
  }
  const ProgressiveLayerDropConfig& drop = config.progressive_layer_drop;
  if (!(drop.theta >= 0.0 && drop.theta <= 1.0))
    checks.problem("progressive_layer_drop.theta", "expected a probability from 0 to 1, got " +
                                                       text_of(drop.theta) + ". Write 0.5.");
  checks.not_negative("progressive_layer_drop.gamma", drop.gamma);
  const FlopsProfilerConfig& flops = config.flops_profiler;
  checks.at_least("flops_profiler.profile_step", flops.profile_step, 1);
  checks.at_least("flops_profiler.module_depth", flops.module_depth, -1);
  checks.at_least("flops_profiler.top_modules", flops.top_modules, 1);
  checks.not_negative("flops_profiler.recompute_fwd_factor", flops.recompute_fwd_factor);
}

}  // namespace equigrad
