// OverflowingModel: a model of the zoo whose loss can be made so large that gradients overflow.
//
// Invariants: it has the modules, parameters and buffers of the model it was made from, under their
// names and in their order; with a loss factor of 1 it computes that model's numbers.
// Shapes: the model's.   Errors: the model's.
// Depends on: reference/models/model.hpp.
#pragma once

#include <memory>

#include "reference/models/model.hpp"

namespace equigrad::conformance {

class OverflowingModel : public reference::Model {
 public:
  explicit OverflowingModel(std::shared_ptr<reference::Model> model);

  // Multiplies what the criterion gives from now on.
  void set_loss_factor(double loss_factor) { loss_factor_ = loss_factor; }

  at::Tensor output(const reference::Batch& batch) override { return model_->output(batch); }
  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override;
  at::Tensor penalty() override { return model_->penalty(); }
  std::vector<reference::GroupSpec> groups() override { return model_->groups(); }

 private:
  std::shared_ptr<reference::Model> model_;
  double loss_factor_ = 1;
};

}  // namespace equigrad::conformance
