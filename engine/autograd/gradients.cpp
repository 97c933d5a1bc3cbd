#include "engine/autograd/gradients.hpp"

#include <torch/csrc/autograd/autograd.h>

namespace equigrad::autograd {

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs,
                                  const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& along, bool create_graph) {
  return torch::autograd::grad(outputs, inputs, along, /*retain_graph=*/true, create_graph,
                               /*allow_unused=*/true);
}

}  // namespace equigrad::autograd
