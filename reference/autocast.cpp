#include "reference/autocast.hpp"

#include <ATen/autocast_mode.h>

namespace equigrad::reference {

namespace autocast = at::autocast;

AutocastGuard::AutocastGuard(const std::optional<AutocastSpec>& spec, at::DeviceType device)
    : device_(device),
      active_(spec.has_value()),
      enabled_before_(autocast::is_autocast_enabled(device_)),
      dtype_before_(autocast::get_autocast_dtype(device_)) {
  if (!active_) return;
  autocast::clear_cache();
  autocast::increment_nesting();  // a scope inside of this one then leaves the cache alone
  autocast::set_autocast_enabled(device_, true);
  autocast::set_autocast_dtype(device_, spec->dtype);
}

AutocastGuard::~AutocastGuard() {
  if (!active_) return;
  autocast::set_autocast_dtype(device_, dtype_before_);
  autocast::set_autocast_enabled(device_, enabled_before_);
  autocast::decrement_nesting();
  autocast::clear_cache();
}

std::set<const void*> safe_parameters(const torch::nn::Module& model,
                                      const std::vector<std::string>& classes) {
  static const std::set<std::string> kKnown = {"Linear", "Conv1d", "Conv2d", "Conv3d"};
  std::set<std::string> types;
  for (const std::string& name : classes) {
    TORCH_CHECK(kKnown.contains(name), "[autocast] expected Linear, Conv1d, Conv2d or Conv3d as ",
                "a safe module, got ", name, ".");
    types.insert("torch::nn::" + name + "Impl");
  }
  std::set<const void*> safe, others;
  auto& of_model = types.contains(model.name()) ? safe : others;
  for (const auto& own : model.parameters(false)) of_model.insert(own.unsafeGetTensorImpl());
  for (const auto& module : model.modules(/*include_self=*/false)) {
    auto& of = types.contains(module->name()) ? safe : others;
    for (const auto& own : module->parameters(false)) of.insert(own.unsafeGetTensorImpl());
  }
  for (const void* tied : others) safe.erase(tied);
  return safe;
}

}  // namespace equigrad::reference
