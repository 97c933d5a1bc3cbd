// Schedules: a short way to write one, and its first values.
//
// Invariants: first_rates gives what update 0, 1, .. use.
// Units: counts are updates.   Errors: equigrad::Error from the schedule.
// Depends on: engine/schedule/schedule.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/schedule.hpp"

namespace equigrad::schedule {

inline SchedulerConfig warmup(SchedulerConfig::Kind kind, std::int64_t steps,
                              std::int64_t total = 0,
                              SchedulerConfig::WarmupType type = SchedulerConfig::WarmupType::Log) {
  SchedulerConfig config;
  config.kind = kind;
  config.warmup_num_steps = steps;
  config.total_num_steps = total;
  config.warmup_type = type;
  return config;
}

inline SchedulerConfig one_cycle(std::int64_t first, std::int64_t second) {
  SchedulerConfig config;
  config.kind = SchedulerConfig::Kind::OneCycle;
  config.cycle_min_lr = {0.001};
  config.cycle_max_lr = {0.009};
  config.cycle_first_step_size = first;
  config.cycle_second_step_size = second;
  return config;
}

inline SchedulerConfig range_test(std::int64_t size, bool staircase) {
  SchedulerConfig config;
  config.kind = SchedulerConfig::Kind::LrRangeTest;
  config.lr_range_test_step_size = size;
  config.lr_range_test_step_rate = 2.0;
  config.lr_range_test_staircase = staircase;
  return config;
}

// The rates of the first `count` updates.
inline std::vector<Rates> first_rates(const SchedulerConfig& config, int count,
                                      const std::vector<double>& group_lr = {0.01}) {
  const auto schedule = make_schedule(config, group_lr);
  std::vector<Rates> rates;
  for (; count > 0; --count) {
    rates.push_back(schedule->current());
    schedule->step();
  }
  return rates;
}

}  // namespace equigrad::schedule
