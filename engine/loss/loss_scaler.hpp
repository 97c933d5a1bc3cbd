// LossScaler: the number S that a loss is multiplied by so that 16-bit gradients do not vanish, and
// the rule by which it changes.
//
//   Static      never.
//   DeepSpeed   overflow: the first hysteresis - 1 of them are let pass, then S = max(S/2, min); an
//               overflow at the floor is an error. Otherwise: doubled after loss_scale_window + 1
//               steps without overflow, then every loss_scale_window. Hysteresis starts anew with
//               each growth, or with each step without overflow (consecutive_hysteresis).
//               DeepSpeed's DynamicLossScaler, of its ZeRO stages.
//   GradScaler  overflow: S/2. Otherwise: doubled after loss_scale_window steps without overflow;
//               both start the count anew. torch.amp.GradScaler.
//
// Several engines may share a scaler. It changes when no engine holds gradients scaled by it any
// more and at least one has stepped since the last change: once, with overflow if any of them had
// it. With one engine: once per step.
//
// Invariants: S is a power of two from 2^-126 to 2^127, the normal numbers of fp32; where a growth
// or GradScaler's backoff would leave that range S stays, and the rule goes on as if it had
// changed. S never changes while an engine holds gradients scaled by it.
// Units: windows and hysteresis count steps.
// Errors: Error for a configuration outside of these ranges, and from stepped() for an overflow at
// the floor: the step then counts as any other, S stays, nothing is held, and training may go on;
// from restore() for what no scaler of this policy has come to.
// Depends on: engine/config/config.hpp. Not thread-safe: engines that share one step on one thread.
// Formulas: https://github.com/deepspeedai/DeepSpeed deepspeed/runtime/fp16/loss_scaler.py;
// https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler
#pragma once

#include <cstdint>
#include <set>

#include "engine/config/config.hpp"

namespace equigrad::loss {

class LossScaler {
 public:
  // What the next change depends on.
  struct History {
    double scale = 1.0;
    bool stepped = false;   // since the last change
    bool overflow = false;  // since the last change
    // DeepSpeed
    int64_t steps = 0;
    int64_t last_overflow = -1;
    int64_t hysteresis_left = 1;
    // GradScaler
    int64_t good_steps = 0;
    bool operator==(const History&) const = default;
  };

  explicit LossScaler(const LossScaleConfig& config);

  double scale() const { return history_.scale; }  // 1 for the policy None
  bool is_needed() const { return config_.policy != LossScaleConfig::Policy::None; }

  // The window of `engine` holds gradients of this scale. A second call adds nothing.
  void hold(const void* engine);
  // `engine` reached a boundary, with an overflow on any rank or not; it holds nothing more.
  void stepped(const void* engine, bool overflow);
  // `engine` has emptied its window without a step. If this makes an error at the floor due, the
  // next stepped() throws it.
  void released(const void* engine) noexcept;

  const History& history() const { return history_; }
  // That of an earlier run with the same policy; while nothing is held.
  void restore(const History& history);
  bool is_held() const { return !holders_.empty(); }
  LossScaleConfig::Policy policy() const { return config_.policy; }

 private:
  bool is_due() const { return history_.stepped && holders_.empty(); }
  bool is_at_floor() const;  // where an overflow is an error
  void change();
  void change_as_deepspeed(bool overflow);
  void change_as_grad_scaler(bool overflow);
  void grow();

  LossScaleConfig config_;
  History history_;
  std::set<const void*> holders_;
};

}  // namespace equigrad::loss
