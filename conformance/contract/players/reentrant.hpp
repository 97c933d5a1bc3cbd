// Reentrant: activation checkpointing by a backward inside of a backward.
//
// The block runs without a graph in the forward, and again in the backward, which differentiates it
// by a backward of its own: its parameters get their gradients in an inner graph task.
//
// Invariants: values and gradients are those of the block itself.
// Shapes: those of the block, which takes one tensor and gives one.
// Errors: what the block throws.   Depends on: ATen tensors, torch's autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <utility>

namespace equigrad::conformance {

using Block = std::function<at::Tensor(const at::Tensor&)>;

struct HeldBlock : torch::CustomClassHolder {
  Block block;
  explicit HeldBlock(Block of) : block(std::move(of)) {}
};

// For a function's forward: keeps the block for its backward, and runs it without a graph.
inline at::Tensor forward_only(torch::autograd::AutogradContext* context, const Block& block,
                               const at::Tensor& x) {
  context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<HeldBlock>(block));
  const at::NoGradGuard no_grad;
  return block(x);
}

inline const Block& block_of(torch::autograd::AutogradContext* context) {
  auto capsule = context->saved_data["block"].toCapsule();
  return static_cast<HeldBlock*>(capsule.get())->block;
}

struct Reentrant : torch::autograd::Function<Reentrant> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const Block& block,
                            const at::Tensor& x) {
    context->save_for_backward({x});
    return forward_only(context, block, x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const at::AutoGradMode with_grad(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    block_of(context)(x).backward(gradients[0]);
    return {at::Tensor(), x.grad()};
  }
};

}  // namespace equigrad::conformance
