// LoudModel: a model of the zoo whose loss can be made so large that gradients overflow.
//
// Invariants: it has the modules, parameters and buffers of the model it was made from, under their
// names and in their order; with a loudness of 1 it computes that model's numbers.
// Shapes: the model's.   Errors: the model's.
// Depends on: reference/models/model.hpp.
#pragma once

#include <memory>

#include "reference/models/model.hpp"

namespace equigrad::conformance {

class LoudModel : public reference::Model {
 public:
  explicit LoudModel(std::shared_ptr<reference::Model> quiet);

  // Multiplies what the criterion gives from now on.
  void set_loudness(double loudness) { loudness_ = loudness; }

  at::Tensor output(const reference::Batch& batch) override { return quiet_->output(batch); }
  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override;
  at::Tensor penalty() override { return quiet_->penalty(); }
  std::vector<reference::GroupSpec> groups() override { return quiet_->groups(); }

 private:
  std::shared_ptr<reference::Model> quiet_;
  double loudness_ = 1;
};

}  // namespace equigrad::conformance
