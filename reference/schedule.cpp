#include "reference/schedule.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

namespace equigrad::reference {
namespace {

using PerGroup = ScheduleSpec::PerGroup;

PerGroup each(const char* key, const PerGroup& given, size_t groups) {
  TORCH_CHECK(given.size() == 1 || given.size() == groups, "[schedule] expected one ", key,
              " or one for each of ", groups, " groups, got ", given.size(), ".");
  return given.size() == groups ? given : PerGroup(groups, given[0]);
}

void expect(const char* key, bool right, const char* what, int64_t got) {
  TORCH_CHECK(right, "[schedule] expected ", key, " to be ", what, ", got ", got, ".");
}

// The part `x` of the way.
PerGroup between(const PerGroup& from, const PerGroup& to, double x) {
  PerGroup values;
  for (size_t g = 0; g < from.size(); ++g) values.push_back(from[g] + (to[g] - from[g]) * x);
  return values;
}

PerGroup times(const PerGroup& values, double factor) {
  PerGroup products;
  for (const double value : values) products.push_back(value * factor);
  return products;
}

double warm_steps(const ScheduleSpec& spec) {
  expect("warmup_num_steps", spec.warmup_num_steps > 0, "at least 1", spec.warmup_num_steps);
  return static_cast<double>(std::max<int64_t>(2, spec.warmup_num_steps));
}

double total_steps(const ScheduleSpec& spec) {
  TORCH_CHECK(spec.total_num_steps, "[schedule] expected total_num_steps, got none.");
  return static_cast<double>(*spec.total_num_steps);
}

// w below n: one over ln n is rounded before it multiplies.
double warmed(const ScheduleSpec& spec, double i, double n) {
  return spec.warmup_type == WarmupType::Linear ? i / n : 1 / std::log(n) * std::log(i + 1);
}

Rates warmup(const ScheduleSpec& spec, const PerGroup& group_lr, double i) {
  const bool decays = spec.kind == ScheduleKind::WarmupDecayLr;
  const double n = warm_steps(spec), total = decays ? total_steps(spec) : 0;
  const size_t groups = group_lr.size();
  const PerGroup from = each("warmup_min_lr", spec.warmup_min_lr, groups);
  const PerGroup left_out = decays ? PerGroup{0.001} : group_lr;
  const PerGroup& given = spec.warmup_max_lr.empty() ? left_out : spec.warmup_max_lr;
  const PerGroup to = each("warmup_max_lr", given, groups);
  if (i < 0) return {from, {}};
  if (i < n) return {between(from, to, warmed(spec, i, n)), {}};
  const double left = decays ? (total - i) / std::max(1.0, total - n) : 1;
  return {between(from, to, std::max(0.0, left)), {}};
}

Rates cosine(const ScheduleSpec& spec, const PerGroup& group_lr, double i) {
  const double n = warm_steps(spec), total = total_steps(spec);
  double ratio = 0;
  if (i >= n) {
    const double progress = std::min(1.0, (i - n + 1) / std::max(1.0, total - n));
    const double wave = (1 + std::cos(std::numbers::pi * progress)) / 2;
    ratio = std::max(0.0, spec.cos_min_ratio + (1 - spec.cos_min_ratio) * wave);
  } else if (i >= 0) {
    ratio = spec.warmup_min_ratio + warmed(spec, i, n) * (1 - spec.warmup_min_ratio);
  }
  return {times(group_lr, ratio), {}};
}

// s: on a slope from the part of the cycle that is over, rounded with a 1 before it; stairs are
// counted in updates.
double height(const ScheduleSpec& spec, double updates, double first, double second) {
  const double cycle = first + second, top = first / cycle;
  const double turns = 1 + updates / cycle, x = turns - std::floor(turns);
  const bool rises = x <= top;
  const int64_t up = spec.cycle_first_stair_count;
  const int64_t stairs = rises ? up : spec.cycle_second_stair_count.value_or(up);
  if (stairs <= 0) return rises ? x / top : (x - 1) / (top - 1);
  const auto k = static_cast<double>(stairs);
  const double within = std::fmod(updates, cycle);
  const double position = within <= first ? within * k / first : (cycle - within) * k / second;
  return std::floor(position) / k;
}

Rates one_cycle(const ScheduleSpec& spec, const PerGroup& group_lr, double i) {
  const int64_t up = spec.cycle_first_step_size, down = spec.cycle_second_step_size.value_or(up);
  expect("cycle_first_step_size", up > 0, "at least 1", up);
  expect("cycle_second_step_size", down >= 0, "at least 0", down);
  const auto first = static_cast<double>(up), second = static_cast<double>(down);
  const double over = i - (first + second) + 1;  // updates after the cycle
  const double s = i >= 0 && over <= 0 ? height(spec, i + 1, first, second) : 0;
  const auto size = static_cast<double>(spec.decay_step_size);
  const double d = over <= 0 || size == 0 ? 0 : over / size;
  const size_t groups = group_lr.size();
  const PerGroup low = each("cycle_min_lr", spec.cycle_min_lr, groups);
  const PerGroup high = each("cycle_max_lr", spec.cycle_max_lr, groups);
  Rates now = {between(low, high, s), {}};
  for (double& lr : now.lr) lr = lr / (1 + spec.decay_lr_rate * d);
  if (!spec.cycle_momentum) return now;
  const PerGroup least = each("cycle_min_mom", spec.cycle_min_mom, groups);
  const PerGroup most = each("cycle_max_mom", spec.cycle_max_mom, groups);
  if (i < 0) return {now.lr, least};
  for (size_t g = 0; g < groups; ++g) now.beta1.push_back(most[g] - (most[g] - least[g]) * s);
  now.beta1 = times(now.beta1, 1 + spec.decay_mom_rate * d);
  return now;
}

Rates range_test(const ScheduleSpec& spec, const PerGroup& group_lr, double i) {
  const int64_t size = spec.lr_range_test_step_size;
  expect("lr_range_test_step_size", size > 0, "at least 1", size);
  const double line = (i + 1) / static_cast<double>(size);
  const double q = spec.lr_range_test_staircase ? std::floor(line) : line;
  const PerGroup from = each("lr_range_test_min_lr", spec.lr_range_test_min_lr, group_lr.size());
  return {times(from, 1 + spec.lr_range_test_step_rate * q), {}};
}

}  // namespace

Rates rates(const ScheduleSpec& spec, const std::vector<double>& group_lr,
            int64_t applied_updates) {
  expect("applied_updates", applied_updates >= 0, "at least 0", applied_updates);
  expect("last_batch_iteration", spec.last_batch_iteration >= -1, "at least -1",
         spec.last_batch_iteration);
  const auto i = static_cast<double>(spec.last_batch_iteration + applied_updates);
  if (spec.kind == ScheduleKind::WarmupCosineLr) return cosine(spec, group_lr, i);
  if (spec.kind == ScheduleKind::OneCycle) return one_cycle(spec, group_lr, i);
  if (spec.kind == ScheduleKind::LrRangeTest) return range_test(spec, group_lr, i);
  return warmup(spec, group_lr, i);
}

}  // namespace equigrad::reference
