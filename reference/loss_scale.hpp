// LossScale: the power of two that a loss is multiplied by, and how it follows the steps.
//
//   None        1
//   Static      the initial value
//   GradScaler  torch.amp.GradScaler: half after an overflow, double after `window` good steps in a
//               row; both begin the count anew
//   Zero        DeepSpeed's ZeRO: overflows use up a hysteresis of H before they halve
//
// Zero, from it = 0, last = -1, h = H:
//   overflow  H = 1 or h = 1: at the minimum an error, else S = max(S / 2, minimum)
//             otherwise h = h - 1;                                            then last = it
//   ok        consecutive: h = H; n = it - last - 1
//             n > 0 and n a multiple of the window: not consecutive: h = H; S = 2 S
//   either    it = it + 1
//
// Invariants: scale() is a power of two. A step that overflows is skipped by its owner, whatever
//   the scale does. Units: window and hysteresis count steps.
// Errors: c10::Error for a scale or minimum that is no power of two, a minimum above the scale, a
//   window or hysteresis below 1, and for an overflow at the minimum, which changes nothing.
// Source: deepspeed/runtime/fp16/loss_scaler.py; torch/amp/grad_scaler.py.
// Depends on: precision.hpp.
#pragma once

#include <cstdint>

#include "reference/precision.hpp"

namespace equigrad::reference {

class LossScale {
 public:
  explicit LossScale(const LossScaleSpec& spec);

  double scale() const { return scale_; }
  // After every step, once.
  void update(bool overflow);
  const LossScaleSpec& spec() const { return spec_; }

 private:
  void update_deepspeed(bool overflow);

  LossScaleSpec spec_;
  double scale_;
  int64_t iteration_ = 0;       // Zero: it
  int64_t last_overflow_ = -1;  // Zero: last
  int64_t hysteresis_;          // Zero: h
  int64_t good_steps_ = 0;      // GradScaler: since the scale last changed or overflowed
};

}  // namespace equigrad::reference
