#include <torch/torch.h>

#include <iostream>

#include "engine/engine.hpp"

int main() {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  auto engine = equigrad::initialize(*model, R"({
    "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
  for (int micro_batch = 1; micro_batch <= 200; ++micro_batch) {
    const auto input = torch::randn({16, 8});
    const auto loss = (model->forward(input) - input.sum(1, true)).pow(2).mean();
    engine->backward(loss);
    engine->step();
    if (micro_batch % 100 == 0) std::cout << "loss " << loss.item<float>() << "\n";
  }
}
