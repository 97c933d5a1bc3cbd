// Perceptron: a model as any other, and the loss of a batch of its own for every pass.
//
// Invariants: a batch depends on Which alone.   Shapes: [8, 6] to [8, 3].
// Units: none.   Errors: none.   Depends on: torch::nn.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn.h>
#include <torch/types.h>

#include <cstdint>
#include <equigrad/user_model.hpp>

struct Perceptron : torch::nn::Module {
  Perceptron() {
    register_module("in", in);
    register_module("dropout", dropout);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& input) { return out(dropout(at::gelu(in(input)))); }
  torch::nn::Linear in{6, 16}, out{16, 3};
  torch::nn::Dropout dropout{0.1};
};

// A data set would be read at this place: other rows in every pass, and the same ones whenever that
// pass is run.
inline at::Tensor perceptron_loss(Perceptron& model, const equigrad::Which& which) {
  const int batch = 16 * (which.step * which.world + which.rank) + which.micro_batch;
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(batch));
  const auto input = which.cast(torch::randn({8, 6}, generator));
  const auto target = which.cast(torch::randn({8, 3}, generator));
  return torch::mse_loss(model.forward(input), target);
}
