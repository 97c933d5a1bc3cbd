#include "conformance/cases/overflowing_model.hpp"

#include <ATen/ATen.h>

#include <utility>

namespace equigrad::conformance {

OverflowingModel::OverflowingModel(std::shared_ptr<reference::Model> quiet)
    : model_(std::move(quiet)) {
  for (const auto& item : model_->named_parameters(/*recurse=*/false))
    register_parameter(item.key(), item.value(), item.value().requires_grad());
  for (const auto& item : model_->named_buffers(/*recurse=*/false))
    register_buffer(item.key(), item.value());
  for (const auto& item : model_->named_children()) register_module(item.key(), item.value());
}

at::Tensor OverflowingModel::criterion(const at::Tensor& output, const reference::Batch& batch) {
  const auto quiet = model_->criterion(output, batch);
  return loss_factor_ == 1 ? quiet : quiet * loss_factor_;
}

}  // namespace equigrad::conformance
