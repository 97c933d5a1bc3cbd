// A model as a user's library has it, for tests of EQUIGRAD_MODEL.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cstdlib>
#include <string>

#include "conformance/check/registered_model.hpp"

namespace {

struct SmallModel : torch::nn::Module {
  SmallModel() {
    register_module("in", in);
    register_module("norm", norm);
    register_module("out", out);
  }
  torch::nn::Linear in{5, 7};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({7})};
  torch::nn::Linear out{7, 2};
};

// SMALL_MODEL=dies or =detached: a model that cannot be checked.
at::Tensor loss_of(SmallModel& model, const equigrad::Which& which) {
  const char* set = std::getenv("SMALL_MODEL");
  const std::string how = set == nullptr ? "" : set;
  if (how == "dies") std::abort();
  const int batch_number = 16 * (which.step * which.world + which.rank) + which.micro_batch;
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(batch_number));
  const auto batch = which.cast(torch::randn({6, 5}, generator));
  const auto loss = model.out(at::tanh(model.norm(model.in(batch)))).square().mean();
  return how == "detached" ? loss.detach() : loss;
}

}  // namespace

EQUIGRAD_MODEL([] { return std::make_shared<SmallModel>(); }, loss_of)
