// Trains a small classifier at ZeRO stage 3, on as many ranks as the environment says:
//   ./training                                     one rank
//   torchrun --nproc-per-node=2 --no-python ./training
// Without torchrun each rank has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
#include <torch/torch.h>

#include <cstdlib>
#include <equigrad/engine.hpp>
#include <equigrad/error.hpp>
#include <iostream>

namespace {

int train() {
  const char* named = std::getenv("RANK");
  const int rank = named == nullptr ? 0 : std::atoi(named);
  torch::manual_seed(1);  // the same model on every rank
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::GELU(),
                              torch::nn::Linear(64, 4));
  auto engine = equigrad::initialize(*model, R"({
    "train_micro_batch_size_per_gpu": 32, "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0, "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
  torch::manual_seed(1000 + rank);  // other data on each
  float first = 0, last = 0;
  for (int micro_batch = 0; micro_batch < 200; ++micro_batch) {
    const auto input = torch::randn({32, 16});
    const auto label = input.slice(1, 0, 4).argmax(1);  // the largest of the first four numbers
    const auto loss = torch::nn::functional::cross_entropy(model->forward(input), label);
    engine->backward(loss);
    engine->step();
    last = loss.item<float>();
    if (micro_batch == 0) first = last;
  }
  if (rank == 0) std::cout << "loss " << first << " -> " << last << "\n";
  return last < first / 2 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return train();
  } catch (const equigrad::Error& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
