// Schedule: the learning rate of every parameter group, and OneCycle's first beta, by update.
//
// WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle and LRRangeTest with DeepSpeed's parameters and
// its sequence of values. Its habits, kept because its users know them: i, the last batch
// iteration, is -1 until the first update was applied and 0 then, so the first update uses the
// initial value and the second uses i = 0. WarmupLR and WarmupDecayLR begin with warmup_min_lr
// twice; WarmupCosineLR begins with 0 whatever warmup_min_ratio says, then warmup_min_ratio;
// OneCycle begins with cycle_min_mom, then jumps to near cycle_max_mom.
//
//   WarmupLR        min + (max - min) w(i),  w = ln(i + 1) / ln(n) or i / n while i < n, then 1
//   WarmupDecayLR   as WarmupLR; from n on   w = max(0, (total - i) / max(1, total - n))
//   WarmupCosineLR  lr (a + (1 - a) w(i)); from n on   lr (c + (1 - c) (1 + cos(pi p)) / 2),
//                   p = min(1, (i - n + 1) / max(1, total - n))
//   OneCycle        min + (max - min) s(i + 1),  s up to 1 in the first half, down to 0 in the
//                   second, in stairs if there are any; then min / (1 + decay_lr_rate d),
//                   d = (i - first - second + 1) / decay_step_size
//                   beta1: max - (max - min) s; then max (1 + decay_mom_rate d)
//   LRRangeTest     min (1 + step_rate k),  k = (i + 1) / step_size, whole if staircase
//   n = max(2, warmup_num_steps), a = warmup_min_ratio, c = cos_min_ratio
//
// Different on purpose: the second beta stays as configured (DeepSpeed sets 0.99); a keyword that
// the schedule does not know is an error (DeepSpeed jumps to iteration train_batch_size); when
// last_batch_iteration is given, the first update has the rates of that iteration (DeepSpeed leaves
// the optimizer's, which a checkpoint brings, until the first step).
// Invariants: rates have DeepSpeed's bits: its operations on doubles, in its order, so that the end
// of a rise may miss its bound by a rounding. step acts on nothing but the iteration; current
// depends on nothing but it. A skipped update calls no step and holds the rates.
// Units: i counts applied updates from 0; rates are doubles, rounded to fp32 by the update.
// Errors: equigrad::Error for a list that does not have one value for each parameter group, for a
// keyword (see check), and for a beta1 that decay_mom_rate would carry to 1.
// Depends on: engine/config/config.hpp (a SchedulerConfig that passed validate).
// Paper: Smith, A disciplined approach to neural network hyper-parameters (arXiv 1803.09820).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/config/config.hpp"

namespace equigrad::schedule {

// What an update uses, by parameter group.
struct Rates {
  std::vector<double> lr;
  std::vector<double> beta1;  // empty: as configured
  bool operator==(const Rates&) const = default;
};

using LrKeywords = std::map<std::string, double>;

class Schedule {
 public:
  virtual ~Schedule() = default;

  // What the next update uses.
  virtual Rates current() const = 0;

  // Throws what step would throw. To be called before anything of an update is done.
  virtual void check(const LrKeywords& lr_kwargs) const = 0;

  // After an applied update: the next iteration, or the one that the keyword names, which is
  // batch_iteration for OneCycle and LRRangeTest and last_batch_iteration for the others.
  virtual void step(const LrKeywords& lr_kwargs = {}) = 0;

  // -1 before the first step. Given to SchedulerConfig::last_batch_iteration, a new schedule goes
  // on from here.
  virtual std::int64_t last_batch_iteration() const = 0;
};

// group_lr: the configured rate of each parameter group.
std::unique_ptr<Schedule> make_schedule(const SchedulerConfig& config,
                                        const std::vector<double>& group_lr);

}  // namespace equigrad::schedule
