// Schedule: the learning rate of every group, and OneCycle's first beta, of the update with a
// number.
//
// i = last_batch_iteration + the number of updates applied so far; at i < 0, before the first of
// all, rates are the initial ones. n is warmup_num_steps, but at least 2; T is total_num_steps.
//
//   WarmupLR        b + (t - b) w;  b, t warmup_min_lr, warmup_max_lr; initially b
//                   w = ln(i + 1) / ln n, or i / n, below n; 1 from n on
//   WarmupDecayLR   the same, and from n on  w = (T - i) / max(1, T - n), or 0 when that is less
//   WarmupCosineLR  lr r;  lr the group's own; initially 0
//                   r = m + (1 - m) w below n, m = warmup_min_ratio
//                   r = c + (1 - c) (1 + cos(pi p)) / 2 from n on, but never below 0;
//                   c = cos_min_ratio, p = (i - n + 1) / max(1, T - n), but at most 1
//   OneCycle        b + (t - b) s;  b, t cycle_min_lr, cycle_max_lr; initially b
//                   F and S updates up and down; s is 0 at i + 1 = 0, 1 at F, 0 at F + S, straight
//                   in between, or of k stairs on this side: s rounded down to a multiple of 1 / k
//                   from i = F + S on  b / (1 + decay_lr_rate d), d = (i - F - S + 1) /
//                   decay_step_size, or 0 when that is 0
//                   first beta: u - (u - l) s, then u (1 + decay_mom_rate d);  l, u cycle_min_mom,
//                   cycle_max_mom; initially l
//   LRRangeTest     b (1 + lr_range_test_step_rate q);  b lr_range_test_min_lr; initially b
//                   q = (i + 1) / lr_range_test_step_size, rounded down if staircase
//
// Names and defaults are DeepSpeed's, and so is the order of the operations, each one rounding in
// fp64. It sets the second beta, too: 0.99; here that stays. When last_batch_iteration is given it
// waits with the rate of that iteration for a checkpoint; here update 0 uses it.
// Invariants: a function of its arguments. Skipped updates are no updates: whoever counts leaves
//   them out. A first beta may come to 1 and above, as the formula has it.
// Units: *_steps, *_step_size and *_iteration count applied updates.
// Shapes: rates have one value for each of group_lr; a list of the spec has one, which counts for
//   all groups, or as many; an empty one is a key that is left out.
// Errors: c10::Error for a key that must be given and is not, for a list of another length, for
//   steps or sizes that DeepSpeed refuses, for a negative number of updates.
// Source: deepspeed/runtime/lr_schedules.py; Smith, arXiv 1803.09820.
// Depends on: the C++ standard library; c10's exceptions in the source.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace equigrad::reference {

enum class ScheduleKind { WarmupLr, WarmupDecayLr, WarmupCosineLr, OneCycle, LrRangeTest };
enum class WarmupType { Log, Linear };

struct ScheduleSpec {
  using PerGroup = std::vector<double>;

  ScheduleKind kind = ScheduleKind::WarmupLr;
  PerGroup warmup_min_lr = {0.0};
  PerGroup warmup_max_lr = {};  // left out: WarmupLR the group's own, WarmupDecayLR 0.001
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::Log;
  std::optional<int64_t> total_num_steps = {};  // must be given
  double warmup_min_ratio = 0.0;
  double cos_min_ratio = 0.0001;
  PerGroup cycle_min_lr = {};  // must be given, as the next
  PerGroup cycle_max_lr = {};
  double decay_lr_rate = 0.0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size = {};    // left out: as the first
  int64_t cycle_first_stair_count = 0;                   // 0: none
  std::optional<int64_t> cycle_second_stair_count = {};  // left out: as the first
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  PerGroup cycle_min_mom = {0.8};
  PerGroup cycle_max_mom = {0.9};
  double decay_mom_rate = 0.0;
  PerGroup lr_range_test_min_lr = {0.001};
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  bool lr_range_test_staircase = false;
  int64_t last_batch_iteration = -1;
};

// By group.
struct Rates {
  std::vector<double> lr;
  std::vector<double> beta1;  // empty: the optimizer's own
  bool operator==(const Rates&) const = default;
};

// group_lr: each group's own rate, as it was before any schedule.
Rates rates(const ScheduleSpec& spec, const std::vector<double>& group_lr, int64_t applied_updates);

}  // namespace equigrad::reference
