#include "engine/gradient/micro_batches.hpp"

#include <fmt/format.h>

#include "engine/error.hpp"

namespace equigrad::gradient {

void MicroBatches::check_step() const {
  if (!no_sync_.expired()) {
    throw Error("engine.step",
                "expected to be outside of no_sync(), got a guard that still lives. Let it end "
                "before step().");
  }
  if (passes_ == 0) {
    throw Error("engine.step",
                "expected a backward pass since the last step(), got none. Call "
                "engine.backward(loss), or backward() on a tensor of the model, first.");
  }
}

void MicroBatches::end_step() {
  in_window_ = is_boundary() ? 0 : in_window_ + 1;
  passes_ = 0;
}

std::shared_ptr<void> MicroBatches::no_sync() {
  if (!no_sync_.expired()) {
    throw Error("engine.no_sync",
                "expected no guard, got one that still lives. no_sync() cannot be nested; let the "
                "first one end.");
  }
  auto guard = std::make_shared<bool>(true);
  no_sync_ = guard;
  return guard;
}

void MicroBatches::set_train_batch_size(int64_t train_batch_size, int64_t at_once) {
  if (train_batch_size < at_once || train_batch_size % at_once != 0) {
    throw Error("engine.set_train_batch_size",
                fmt::format("expected a multiple of {} (micro-batch size x ranks), got {}. The "
                            "micro-batch size stays; choose the number of them.",
                            at_once, train_batch_size));
  }
  if (!is_between_windows()) {
    throw Error("engine.set_train_batch_size",
                fmt::format("expected to be between windows, got {} micro-batches and {} passes "
                            "into one. Call it after the step() of a boundary.",
                            in_window_, passes_));
  }
  accumulation_steps_ = train_batch_size / at_once;
}

}  // namespace equigrad::gradient
