#include "engine/autograd/autocast.hpp"

#include <ATen/autocast_mode.h>

#include "engine/kernels/data_types.hpp"

namespace equigrad {
namespace {

class AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, at::ScalarType dtype)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        former_dtype_(at::autocast::get_autocast_dtype(device)),
        changes_dtype_(former_dtype_ != dtype) {
    if (changes_dtype_) at::autocast::clear_cache();
    at::autocast::set_autocast_dtype(device_, dtype);
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::increment_nesting();
  }
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0 || changes_dtype_) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, former_dtype_);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  at::ScalarType former_dtype_;
  bool changes_dtype_;  // torch gives a kept cast to whoever reads the weight, whatever its type
};

}  // namespace

std::shared_ptr<void> make_autocast_guard(const AutocastConfig& config, c10::DeviceType device) {
  if (!config.enabled) return nullptr;
  return std::make_shared<AutocastGuard>(device, torch_dtype(config.dtype));
}

}  // namespace equigrad
