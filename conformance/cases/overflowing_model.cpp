#include "conformance/cases/overflowing_model.hpp"

#include <ATen/ATen.h>

#include <utility>

namespace equigrad::conformance {

LoudModel::LoudModel(std::shared_ptr<reference::Model> quiet) : quiet_(std::move(quiet)) {
  for (const auto& item : quiet_->named_parameters(/*recurse=*/false))
    register_parameter(item.key(), item.value(), item.value().requires_grad());
  for (const auto& item : quiet_->named_buffers(/*recurse=*/false))
    register_buffer(item.key(), item.value());
  for (const auto& item : quiet_->named_children()) register_module(item.key(), item.value());
}

at::Tensor LoudModel::criterion(const at::Tensor& output, const reference::Batch& batch) {
  const auto quiet = quiet_->criterion(output, batch);
  return loudness_ == 1 ? quiet : quiet * loudness_;
}

}  // namespace equigrad::conformance
