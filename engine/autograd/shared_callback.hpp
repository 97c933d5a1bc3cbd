// SharedCallback: a RecordFunction callback that the process has while somebody uses it.
//
// RecordFunction's callbacks are functions without data, called for every operator or node of the
// process: each observer of this engine has one, however many engines there are.
//
// Invariants: the callback is there from before the first Use is made until after the last has
// ended; never twice. Without any Use, operators cost nothing.
// Errors: none.   Depends on: ATen's RecordFunction.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <mutex>

namespace equigrad::autograd {

// One for the process: static.
class SharedCallback {
 public:
  explicit SharedCallback(at::RecordFunctionCallback callback) : callback_(callback) {}
  SharedCallback(const SharedCallback&) = delete;
  SharedCallback& operator=(const SharedCallback&) = delete;

  class Use {
   public:
    explicit Use(SharedCallback& of);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    SharedCallback& of_;
  };

  bool is_used() const { return uses_ > 0; }

 private:
  const at::RecordFunctionCallback callback_;
  std::mutex mutex_;
  std::atomic<int> uses_ = 0;
  at::CallbackHandle handle_ = 0;
};

}  // namespace equigrad::autograd
