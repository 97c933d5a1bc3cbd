// Access: read and write one parameter's gradient, master weight and optimizer state, whole or
// this rank's slice, at every stage (DeepSpeed: safe_get_full_grad, safe_set_local_fp32_param,
// ...).
//
// Invariants: a gradient is the average over all ranks and the passes so far, unscaled, before
// clipping: what step() would take now; never one rank's own, never the last window's. Values come
// as copies. A setter's value is what every later read gives, and what step() works with; the
// model's parameter follows its master at once.
// Shapes: full_* have the parameter's shape and are contiguous, local_* are flat elements
// [begin, end) of it (LocalShard), in the order of the shape whatever the parameter's strides,
// padding never shown; in the type that is kept, to which a setter's value is
// rounded: fp32, unless masters or optimizer state are kept in 16 bits.
// Errors: equigrad::Error for an unknown name or state, a frozen parameter, a value of another
// shape, values that differ between ranks. Every call but local_master, local_optimizer_state and
// set_local_optimizer_state is collective: ranks that come to different calls all get an error.
// Depends on: ATen tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace equigrad {

struct Stations;  // engine/inspect/tensor_access.hpp

class Access {
 public:
  explicit Access(Stations& stations) : at_(stations) {}  // which outlive it

  // Undefined if no rank has used the parameter since the window began.
  at::Tensor full_gradient(const std::string& name);
  at::Tensor full_master(const std::string& name);
  at::Tensor full_optimizer_state(const std::string& name, const std::string& state);
  // The gradient so far becomes `value`; passes that follow in this window are added to it.
  void set_full_gradient(const std::string& name, const at::Tensor& value);
  void set_full_master(const std::string& name, const at::Tensor& value);
  void set_full_optimizer_state(const std::string& name, const std::string& state,
                                const at::Tensor& value);

  at::Tensor local_gradient(const std::string& name);
  at::Tensor local_master(const std::string& name);
  at::Tensor local_optimizer_state(const std::string& name, const std::string& state);
  void set_local_gradient(const std::string& name, const at::Tensor& value);
  void set_local_master(const std::string& name, const at::Tensor& value);
  // At stage 0 the slice is the whole: the caller sees to it that all ranks set the same.
  void set_local_optimizer_state(const std::string& name, const std::string& state,
                                 const at::Tensor& value);

 private:
  Stations& at_;
};

}  // namespace equigrad
