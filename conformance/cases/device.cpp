#include "conformance/cases/device.hpp"

namespace equigrad::conformance {

c10::Device& device() {
  static c10::Device here(c10::kCPU);
  return here;
}

std::shared_ptr<reference::Model> on_device(std::shared_ptr<reference::Model> model) {
  if (!device().is_cpu()) model->to(device());
  return model;
}

reference::Batch on_device(const reference::Batch& batch) {
  return {batch.input.to(device()), batch.target.to(device())};
}

}  // namespace equigrad::conformance
