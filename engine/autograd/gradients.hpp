// Gradients of some tensors with respect to others, without a backward pass: no leaf's hook runs
// and no .grad is written.
//
// Invariants: the graph is kept.
// Shapes: a gradient has its input's shape; undefined for an input that no output depends on.
// Errors: autograd's.
// Depends on: ATen tensors; autograd in the source.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace equigrad::autograd {

// `along`: what each output's gradient is; empty for scalars, whose gradient is 1.
std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs,
                                  const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& along, bool create_graph);

}  // namespace equigrad::autograd
