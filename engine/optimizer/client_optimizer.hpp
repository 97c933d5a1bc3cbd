// Client optimizer: a torch::optim::Optimizer as the engine's, on slices.
//
// Its param_groups hold slices instead of parameters from own() on: options stay the user's, so
// does what they change there. A state that it has already is cut to the slices (Adagrad makes its
// own when it is constructed). On the CPU torch's SGD, Adam, AdamW, RMSprop and Adagrad give every
// element the bits that they give it in a whole parameter, wherever it lies.
// Invariants: as in slice_optimizer.hpp.
// Shapes: flat slices. States by the names of torch: momentum_buffer (SGD, RMSprop), exp_avg,
// exp_avg_sq, max_exp_avg_sq (Adam, AdamW), square_avg, grad_avg (RMSprop), sum (Adagrad); those
// of other classes are not known, and cannot be read by name.
// Kind: "torch::optim::" and the class; of other classes what the compiler calls them.
// Numbers: the step of Adam, AdamW, RMSprop and Adagrad, in decimal digits.
// Errors: equigrad::Error for none, LBFGS, a trainable parameter that is in no group or in two, one
// of another model, a state that cannot be cut, or is not known when it is to be restored.
// Depends on: engine/api/slice_optimizer.hpp, torch::optim in the source.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/api/slice_optimizer.hpp"

namespace torch::optim {
class Optimizer;
}

namespace equigrad::optimizer {

class ClientOptimizer final : public SliceOptimizer {
 public:
  explicit ClientOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);

  void own(const std::vector<OwnedSlice>& slices) override;
  void step(const std::vector<at::Tensor>& gradients) override;
  std::vector<double> lr() const override;
  void set_rates(const std::vector<double>& lr, const std::vector<double>& beta1) override;
  std::vector<std::string> state_names(std::size_t slice) const override;
  at::Tensor state(std::size_t slice, const std::string& name) override;
  int64_t state_bytes() const override;
  std::string kind() const override;
  std::string numbers(std::size_t slice) const override;
  void restore(std::size_t slice, const SliceStates& states, const std::string& numbers) override;

 private:
  void cut_states(const std::vector<OwnedSlice>& slices);

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<at::Tensor> slices_;
};

}  // namespace equigrad::optimizer
