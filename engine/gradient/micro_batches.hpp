// Micro-batches: how far the accumulation window has come, and whether the next step() ends it.
//
// Invariants: a window ends after `accumulation_steps` calls of step(), after each of them where
// the caller counts, or where the user has set the boundary; its length changes between windows
// only; no step() inside of no_sync().
// Units: backward passes; micro-batches, which are calls of step().
// Errors: equigrad::Error for a step() without a pass or inside no_sync(), a nested no_sync(), a
// batch size that is no multiple, or that comes within a window.
// Depends on: engine/error.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace equigrad::gradient {

class MicroBatches {
 public:
  // `is_managed`: calls of step() are counted; if not, the caller makes one at the end of a window.
  explicit MicroBatches(int64_t accumulation_steps, bool is_managed = true)
      : accumulation_steps_(accumulation_steps), is_managed_(is_managed) {}

  int64_t accumulation_steps() const { return accumulation_steps_; }
  bool is_boundary() const {
    return boundary_.value_or(!is_managed_ || in_window_ + 1 >= accumulation_steps_);
  }
  // Whether a pass of now belongs to the micro-batch that ends the window, as far as can be known:
  // never where the caller counts.
  bool expects_step() const { return is_managed_ && is_boundary() && no_sync_.expired(); }
  void set_boundary(std::optional<bool> is_boundary) { boundary_ = is_boundary; }

  bool is_between_windows() const { return in_window_ == 0 && passes_ == 0; }

  void end_pass() { ++passes_; }
  void check_step() const;
  void end_step();

  [[nodiscard]] std::shared_ptr<void> no_sync();
  // `at_once`: samples of one micro-batch of all ranks.
  void set_train_batch_size(int64_t train_batch_size, int64_t at_once);

 private:
  int64_t accumulation_steps_;
  bool is_managed_;
  int64_t passes_ = 0;     // since the last step()
  int64_t in_window_ = 0;  // micro-batches that have ended
  std::optional<bool> boundary_;
  std::weak_ptr<void> no_sync_;
};

}  // namespace equigrad::gradient
