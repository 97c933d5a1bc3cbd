// The engine on a CUDA device: its kernels have the bits of the CPU's, and a stage's gradients
// those of a plain run. One device tests NCCL with one rank; the label is `gpu`, and without a
// device these tests fail and say so.
#include <ATen/cuda/CUDAContext.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "conformance/testing/bits_matcher.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/comm/launch.hpp"
#include "engine/comm/reduction.hpp"
#include "engine/engine.hpp"
#include "engine/optimizer/sharded_state.hpp"
#include "engine/optimizer/update_rule.hpp"
#include "engine/shard/gradient_shard.hpp"

namespace equigrad {
namespace {

using conformance::oracle::HasTheBitsOf;

constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(at::cuda::is_available())
        << "expected a CUDA device, got none. The `gpu` preset is for machines that have one.";
    at::globalContext().setDeterministicAlgorithms(true, false);
  }
};

at::Tensor random_on_cpu(std::vector<int64_t> shape, uint64_t seed) {
  return torch::randn(shape, at::detail::createCPUGenerator(seed));
}

TEST_F(Gpu, TreeSumHasTheBitsOfTheCpu) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    for (const auto dtype : kTypes) {
      const auto contributions = random_on_cpu({rows, 10'007}, 7).to(dtype);
      for (const auto result : kTypes) {
        EXPECT_THAT(comm::tree_sum(contributions.cuda(), result).cpu(),
                    HasTheBitsOf(comm::tree_sum(contributions, result)));
      }
    }
  }
}

TEST_F(Gpu, NormHasTheBitsOfTheCpu) {
  for (const int64_t numel : {1, 1000, 32'768, 1'000'003}) {
    for (const auto dtype : kTypes) {
      for (const auto type : {NormType::Two, NormType::Infinity}) {
        // Down to subnormal numbers of fp16.
        const auto gradient = random_on_cpu({numel}, 11).mul_(0x1p-14).to(dtype);
        gradient[0] = std::numeric_limits<float>::infinity();
        const auto cpu = shard::measure(gradient, nullptr, type);
        const auto cuda = shard::measure(gradient.cuda(), nullptr, type);
        EXPECT_EQ(cuda.norm, cpu.norm);
        EXPECT_EQ(cuda.non_finite_numel, 1);
      }
    }
  }
}

TEST_F(Gpu, ClippingHasTheBitsOfTheCpu) {
  for (const auto dtype : kTypes) {
    const auto cpu = random_on_cpu({10'007}, 12).to(dtype);
    const auto cuda = cpu.cuda();
    EXPECT_EQ(shard::clip_(cuda, 100.0, 1.0), shard::clip_(cpu, 100.0, 1.0));
    EXPECT_THAT(cuda.cpu(), HasTheBitsOf(cpu));
  }
}

// Three steps on one device; parameter and states, on the CPU.
std::vector<at::Tensor> updated(const OptimizerConfig& config, at::Device device,
                                at::ScalarType dtype) {
  const auto place = [&](const at::Tensor& tensor) { return tensor.to(device, dtype); };
  const auto parameter = place(random_on_cpu({100'003}, 1));
  std::vector<at::Tensor> state;
  for (std::size_t i = 0; i < optimizer::state_names(config).size(); ++i) {
    state.push_back(place(torch::zeros({100'003})));
  }
  for (int64_t step = 1; step <= 3; ++step) {
    const auto seed = static_cast<uint64_t>(10 + step);
    optimizer::update_(config, step, parameter, place(random_on_cpu({100'003}, seed)), state);
  }
  std::vector<at::Tensor> after{parameter.cpu()};
  for (const auto& tensor : state) after.push_back(tensor.cpu());
  return after;
}

TEST_F(Gpu, UpdateHasTheBitsOfTheCpu) {
  for (const auto kind :
       {OptimizerConfig::Kind::AdamW, OptimizerConfig::Kind::Adam, OptimizerConfig::Kind::Sgd}) {
    OptimizerConfig config;
    config.kind = kind;
    config.weight_decay = 0.01;
    config.momentum = 0.9;
    for (const auto dtype : kTypes) {
      const auto cpu = updated(config, at::kCPU, dtype);
      const auto cuda = updated(config, at::kCUDA, dtype);
      for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_THAT(cuda[i], HasTheBitsOf(cpu[i]));
    }
  }
}

TEST_F(Gpu, OffloadedStateHasTheBitsOfStateOnTheDevice) {
  const int64_t numel = 100'003;
  const layout::ParameterTable table({{"weight", &numel, {numel}, true, 0}});
  const layout::BucketPlan plan(table, 1, numel);
  for (const bool pin : {false, true}) {
    memory::Ledger ledger;
    const optimizer::StateOptions offload{.device = at::kCPU, .pin_memory = pin};
    const optimizer::StateOptions stay{.device = at::Device(at::kCUDA, 0)};
    optimizer::ShardedState away({OptimizerConfig{}}, table, plan, offload, ledger);
    optimizer::ShardedState here({OptimizerConfig{}}, table, plan, stay, ledger);
    EXPECT_EQ(away.masters().is_pinned(), pin);
    for (uint64_t step = 1; step <= 3; ++step) {
      const auto gradient = random_on_cpu({plan.shard_numel()}, step).cuda();
      away.update(gradient, {true});
      here.update(gradient, {true});
    }
    EXPECT_EQ(ledger.peak_bytes(memory::Category::Gradients), 4 * plan.shard_numel());
    EXPECT_EQ(ledger.bytes(memory::Category::Gradients), 0);
    EXPECT_THAT(here.masters().cpu(), HasTheBitsOf(away.masters()));
    EXPECT_THAT(here.states()[1].cpu(), HasTheBitsOf(away.states()[1]));
  }
}

torch::nn::Sequential network() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(33, 65), torch::nn::GELU(),
                               torch::nn::Linear(65, 17),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({17})));
}

at::Tensor loss_of(torch::nn::Sequential& model, uint64_t micro_batch, at::ScalarType dtype) {
  const auto input = random_on_cpu({9, 33}, 100 + micro_batch).to(at::kCUDA, dtype);
  return model->forward(input).to(at::kFloat).pow(3).mean();
}

using StageAndDtype = std::tuple<int, bool>;
class GpuStages : public Gpu, public ::testing::WithParamInterface<StageAndDtype> {};

TEST_P(GpuStages, GradientsOverNcclHaveTheBitsOfThePlainRun) {
  const auto [stage, bf16] = GetParam();
  const auto dtype = bf16 ? at::kBFloat16 : at::kFloat;
  constexpr int64_t kAccumulation = 3;
  auto plain = network();
  plain->to(at::kCUDA, dtype);
  std::map<std::string, at::Tensor> want;
  for (uint64_t i = 0; i < kAccumulation; ++i) {
    plain->zero_grad();
    loss_of(plain, i, dtype).backward();
    for (const auto& item : plain->named_parameters()) {
      auto& sum = want[item.key()];
      const auto gradient = item.value().grad().to(at::kFloat);
      sum = sum.defined() ? sum + gradient : gradient.clone();
    }
  }
  auto communicator = comm::connect({}, at::kCUDA, std::chrono::seconds(60));  // NCCL, one rank
  auto model = network();
  model->to(at::kCUDA);
  const std::string config =
      std::string(R"({"train_micro_batch_size_per_gpu": 9, "gradient_accumulation_steps": 3,)") +
      (bf16 ? R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"},)" : "") +
      R"("optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": )" +
      std::to_string(stage) +
      R"(, "reduce_bucket_size": 1000, "stage3_param_persistence_threshold": 0,
         "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 1000}})";
  const auto engine = initialize(*model, config, communicator);
  std::size_t compared = 0;
  engine->on_step([&](const std::vector<LocalShard>& shards) {
    for (const auto& shard : shards) {
      const auto whole = want.at(shard.name).flatten() * (1.0F / kAccumulation);
      EXPECT_THAT(shard.gradient.cpu(), HasTheBitsOf(whole.cpu())) << shard.name;
      ++compared;
    }
  });
  for (uint64_t i = 0; i < kAccumulation; ++i) {
    engine->backward(loss_of(model, i, dtype));
    engine->step();
  }
  EXPECT_EQ(compared, want.size());
}

INSTANTIATE_TEST_SUITE_P(Matrix, GpuStages,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Bool()),
                         [](const auto& one) {
                           return "Stage" + std::to_string(std::get<0>(one.param)) +
                                  (std::get<1>(one.param) ? "Bf16" : "Fp32");
                         });

}  // namespace
}  // namespace equigrad
