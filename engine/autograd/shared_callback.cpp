#include "engine/autograd/shared_callback.hpp"

namespace equigrad::autograd {

SharedCallback::Use::Use(SharedCallback& of) : of_(of) {
  const std::lock_guard lock(of.mutex_);
  if (++of.uses_ == 1) of.handle_ = at::addGlobalCallback(of.callback_);
}

SharedCallback::Use::~Use() {
  const std::lock_guard lock(of_.mutex_);
  if (--of_.uses_ == 0) at::removeCallback(of_.handle_);
}

}  // namespace equigrad::autograd
