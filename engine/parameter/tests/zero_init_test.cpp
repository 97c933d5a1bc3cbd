// A model that is made piece by piece: the same bits as one that is made whole, without ever
// holding it; and what happens when ranks make different models.
#include "engine/zero_init.hpp"

#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "conformance/faults/forwarding_communicator.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/autograd/interpreter_lock.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/engine.hpp"
#include "engine/parameter/early_shards.hpp"

namespace equigrad {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::HasSubstr;

constexpr int64_t kDim = 61, kLayers = 12;

std::string config(int stage, const char* more = "") {
  return R"({"train_micro_batch_size_per_gpu": 1,
             "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
             "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0}, )" + more +
         R"("communication_timeout_s": 20})";
}

struct Block : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kDim, 4 * kDim));
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4 * kDim})));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(4 * kDim, kDim));
};

// Frozen, tied, a buffer; a weight written through its pointer, and one that comes back at the end.
struct Net : torch::nn::Module {
  explicit Net(int64_t layers = kLayers) {
    frozen = register_parameter("frozen", torch::rand({kDim}), /*requires_grad=*/false);
    buffer = register_buffer("buffer", torch::rand({kDim}));
    for (int64_t i = 0; i < layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
      auto bias = blocks.back()->up->bias.detach();
      for (int64_t j = 0; j < bias.numel(); ++j)
        bias.mutable_data_ptr<float>()[j] = 0.5F / static_cast<float>(j + i + 1);
    }
    blocks.back()->register_parameter("tied", blocks[0]->up->weight);
    torch::NoGradGuard no_grad;
    blocks[0]->down->weight.uniform_(-0.25, 0.25);  // long after the others
    blocks[1]->down->weight.mul_(2);
  }
  at::Tensor loss() {
    const auto dtype = blocks[0]->up->weight.scalar_type();
    auto x = (sample(kDim, 9).view({1, kDim}).tanh() * frozen + buffer).to(dtype);
    for (auto& block : blocks) x = x + block->down(block->norm(at::gelu(block->up(x))));
    return x.square().mean();
  }
  at::Tensor frozen, buffer;
  std::vector<std::shared_ptr<Block>> blocks;
};

// The bytes of this process's tensors on the CPU, now and at the peak, from its making on.
class Bytes final : public c10::Allocator {
 public:
  Bytes() { c10::SetCPUAllocator(this, /*priority=*/100); }
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* block = static_cast<std::size_t*>(std::aligned_alloc(64, 64 + (bytes + 63) / 64 * 64));
    *block = bytes;
    const auto all = now += static_cast<int64_t>(bytes);
    for (auto most = peak.load(); all > most && !peak.compare_exchange_weak(most, all);) continue;
    return {block + 8, block, &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  static inline std::atomic<int64_t> now = 0, peak = 0;

 private:
  static void give_back(void* block) {
    now -= static_cast<int64_t>(*static_cast<std::size_t*>(block));
    std::free(block);
  }
};

std::map<std::string, at::Tensor> trained(Net& net, Engine& engine) {
  std::map<std::string, at::Tensor> all;
  const auto keep = [&](const std::string& when) {
    for (const auto& item : net.named_parameters())
      all[when + item.key()] = engine.full_parameter(item.key());
  };
  keep("new ");
  for (int step = 0; step < 2; ++step) {
    engine.backward(net.loss());
    engine.step();
  }
  keep("trained ");
  return all;
}

std::map<std::string, at::Tensor> made_whole(RankContext& context, const std::string& text) {
  torch::manual_seed(
      static_cast<uint64_t>(40 + context.rank()));  // rank 0's values are everybody's
  Net net;
  return trained(net, *initialize(net, text, context.group()));
}

TEST(ZeroInit, BitsAreThoseOfTheModelThatIsMadeWhole) {
  for (const int world : {1, 2, 3}) {
    for (const char* more : {"", R"("bf16": {"enabled": true}, )"}) {
      EXPECT_EQ(on_ranks(world,
                         [more](RankContext& context) {
                           const auto want = made_whole(context, config(3, more));
                           torch::manual_seed(static_cast<uint64_t>(40 + context.rank()));
                           std::unique_ptr<Net> net;
                           {
                             zero::Init init(config(3, more), context.group());
                             net = std::make_unique<Net>();
                             EXPECT_TRUE(parameter::early_shard(net->blocks[2]->up->weight));
                             init.finish();
                           }
                           EXPECT_FALSE(at::hasThreadLocalCallbacks()) << "it has ended";
                           EXPECT_TRUE(parameter::early_shard(net->blocks[0]->up->weight));
                           EXPECT_FALSE(parameter::early_shard(net->buffer));
                           const auto engine = initialize(*net, config(3, more), context.group());
                           const auto got = trained(*net, *engine);
                           for (const auto& [name, tensor] : want)
                             EXPECT_THAT(got.at(name), HasTheBitsOf(tensor)) << name;
                         }),
                "");
    }
  }
}

TEST(ZeroInit, HoldsAShardAndAModuleOrTwo) {
  EXPECT_EQ(on_ranks(4,
                     [](RankContext& context) {
                       static Bytes bytes;  // outlives every tensor of this process
                       int64_t whole = 0, block = 0;
                       {
                         Net net;
                         std::set<const void*> seen;
                         for (const auto& p : net.parameters())
                           if (seen.insert(p.unsafeGetTensorImpl()).second) whole += 4 * p.numel();
                         for (const auto& p : net.blocks[0]->parameters()) block += 4 * p.numel();
                         EXPECT_GE(bytes.peak, whole);
                       }
                       EXPECT_EQ(bytes.now, 0);
                       bytes.peak = 0;
                       zero::Init init(config(3), context.group());
                       Net net;
                       init.finish();
                       // The communicator's workspace keeps what its last gather sent.
                       const int64_t workspace = 4 * net.blocks[0]->up->weight.numel();
                       const int64_t most = whole / 4 + workspace + 12 * 4 * kDim;
                       // Threads of Gloo let go of a collective's tensors a little after it is
                       // over.
                       for (int tries = 0; tries < 500 && bytes.now > most; ++tries)
                         std::this_thread::sleep_for(std::chrono::milliseconds(2));
                       EXPECT_GE(bytes.now, whole / 4);
                       EXPECT_LE(bytes.now, most);
                       EXPECT_LE(bytes.peak, whole / 4 + 3 * block);
                     }),
            "");
}

TEST(ZeroInit, DoesNothingBelowStageThree) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       zero::Init init(config(2), context.group());
                       const Net net(2);
                       EXPECT_FALSE(parameter::early_shard(net.blocks[0]->up->weight));
                     }),
            "");
}

TEST(ZeroInit, RanksThatMakeDifferentModelsAreTold) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       for (const bool by_destructor : {false, true}) {
                         std::unique_ptr<Net> net;
                         const auto error = error_of([&] {
                           {
                             zero::Init init(config(3), context.group());
                             net = std::make_unique<Net>(2 + context.rank());
                             if (!by_destructor) init.finish();
                           }
                           initialize(*net, config(3), context.group());
                         });
                         EXPECT_THAT(error,
                                     HasSubstr("expected every rank to make the same model"));
                       }
                     }),
            "");
}

TEST(ZeroInit, RanksOfWhichOneMakesAParameterMoreAtTheEndAreTold) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       std::vector<torch::nn::Linear> made;
                       const auto error = error_of([&] {
                         zero::Init init(config(3), context.group());
                         for (int i = 0; i <= context.rank(); ++i) made.emplace_back(3, 2);
                         init.finish();
                       });
                       EXPECT_THAT(error, HasSubstr("expected every rank to make the same model"));
                     }),
            "");
}

TEST(ZeroInit, AnExceptionOnOneRankIsToldToTheOthers) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto error = error_of([&] {
                         zero::Init init(config(3), context.group());
                         const Net net(2);
                         if (context.rank() == 1) throw Error("mine", "it broke");
                         init.finish();
                       });
                       EXPECT_THAT(error,
                                   HasSubstr(context.rank() == 1 ? "it broke" : "an exception"));
                     }),
            "");
}

TEST(ZeroInit, WhatItMadeNeedsTheSameRanksAndStage) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       std::unique_ptr<Net> net;
                       {
                         zero::Init init(config(3), context.group());
                         EXPECT_THAT(error_of([&] { zero::Init(config(3), context.group()); }),
                                     HasSubstr("expected one Init at a time"));
                         net = std::make_unique<Net>(2);
                       }
                       EXPECT_THAT([&] { net->loss(); }, testing::ThrowsMessage<c10::Error>(
                                                             HasSubstr("[zero.init] expected")));
                       EXPECT_THAT(error_of([&] { initialize(*net, config(2), context.group()); }),
                                   HasSubstr("which zero::Init has partitioned, got stage 2"));
                       initialize(*net, config(3), context.group());
                     }),
            "");
}

// A transposed weight, a view of one, which shares its storage and so stays until initialize(), and
// one of channels_last; all come back to an operator.
struct StridedNet : torch::nn::Module {
  StridedNet() {
    weight = register_parameter("weight", torch::empty_strided({3, kDim}, {1, 3}).uniform_());
    view = register_parameter("view", torch::rand({kDim, 3}).t());
    planes = register_parameter(
        "planes", torch::rand({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast));
    for (int i = 0; i < 4; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    torch::NoGradGuard no_grad;
    weight.mul_(2);
    view.mul_(2);
    planes.mul_(3);
    for (auto& block : blocks) block->up->weight.mul_(2);
  }
  at::Tensor weight, view, planes;
  std::vector<std::shared_ptr<Block>> blocks;
};

TEST(ZeroInit, StridesStay) {
  EXPECT_EQ(
      on_ranks(
          2,
          [](RankContext& context) {
            torch::manual_seed(7);
            StridedNet whole;
            torch::manual_seed(7);
            zero::Init init(config(3), context.group());
            StridedNet net;
            init.finish();
            const auto strides = [&] {
              EXPECT_EQ(net.view.strides(), net.weight.strides());
              return std::pair{net.weight.strides().vec(), net.planes.strides().vec()};
            };
            const std::pair want{std::vector<int64_t>{1, 3}, std::vector<int64_t>{12, 1, 6, 3}};
            EXPECT_TRUE(parameter::early_shard(net.weight));
            EXPECT_TRUE(parameter::early_shard(net.planes));
            EXPECT_EQ(strides(), want);
            const auto engine = initialize(net, config(3), context.group());
            EXPECT_EQ(strides(), want);
            EXPECT_THAT(engine->full_parameter("weight"), HasTheBitsOf(whole.weight.detach()));
            EXPECT_THAT(engine->full_parameter("view"), HasTheBitsOf(whole.view.detach()));
            EXPECT_THAT(engine->full_parameter("planes"), HasTheBitsOf(whole.planes.detach()));
            EXPECT_EQ(engine->full_parameter("planes").strides().vec(), want.second);
          }),
      "");
}

// torch.nn.utils.skip_init makes a module on the meta device, then its memory.
TEST(ZeroInit, WhatHasNoDataIsLeftAlone) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       zero::Init init(config(3), context.group());
                       const auto meta = at::empty({8, 8}, at::device(at::kMeta)).requires_grad_();
                       const Net net(2);
                       EXPECT_TRUE(meta.is_meta());
                       EXPECT_FALSE(parameter::early_shard(meta).has_value());
                       const auto real = at::ones_like(meta, at::device(at::kCPU));
                       init.finish();
                       EXPECT_EQ(real.sum().item<float>(), 64);
                     }),
            "");
}

thread_local bool has_interpreter = false;
int waits_of_one_rank = 0;

// Its waits are those of the caller's operators.
class Waited final : public conformance::faults::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    EXPECT_FALSE(has_interpreter);
    ++waits_of_one_rank;
    return real_->all_gather(output, input);
  }
};

TEST(ZeroInit, WaitsWithoutTheInterpretersLock) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 autograd::set_interpreter_lock({[] {
                                                   return std::exchange(has_interpreter, false)
                                                              ? static_cast<void*>(&has_interpreter)
                                                              : nullptr;
                                                 },
                                                 [](void*) { has_interpreter = true; }});
                 zero::Init init(config(3), std::make_shared<Waited>(context.group()));
                 has_interpreter = true;
                 const Net net;
                 EXPECT_TRUE(std::exchange(has_interpreter, false));
                 EXPECT_GT(waits_of_one_rank, 0);
                 init.finish();
               }),
      "");
}

}  // namespace
}  // namespace equigrad
