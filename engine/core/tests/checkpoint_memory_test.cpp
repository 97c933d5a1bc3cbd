// What a save and a load hold beside what a rank keeps: a page and a copy of it, at every stage,
// and of a model that zero::Init has cut as it was made.
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <unordered_map>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/engine.hpp"
#include "engine/zero_init.hpp"

namespace equigrad {
namespace {

using conformance::ScratchFolder;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

// Bytes of tensors on the CPU since it was made, and the most of them. Threads of a
// communicator free some.
class Counted final : public c10::Allocator {
 public:
  Counted() : plain_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/100); }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* block = plain_->raw_allocate(bytes);
    const std::lock_guard lock(mutex());
    sizes()[block] = static_cast<int64_t>(bytes);
    live_bytes += static_cast<int64_t>(bytes);
    most_bytes = std::max(most_bytes, live_bytes);
    return {block, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  // The most that `call` holds beside what is there before it.
  template <class Call>
  int64_t most_of(Call call) {
    const auto before = [] {
      const std::lock_guard lock(mutex());
      return most_bytes = live_bytes;
    }();
    call();
    const std::lock_guard lock(mutex());
    return most_bytes - before;
  }

  static inline int64_t live_bytes = 0, most_bytes = 0;

 private:
  static std::unordered_map<void*, int64_t>& sizes() {
    static std::unordered_map<void*, int64_t> all;
    return all;
  }
  static std::mutex& mutex() {
    static std::mutex all;
    return all;
  }
  static void give_back(void* block) {
    const std::lock_guard lock(mutex());
    const auto found = sizes().find(block);
    if (found != sizes().end()) {
      live_bytes -= found->second;
      sizes().erase(found);
    }
    instance()->raw_deallocate(block);
  }
  static c10::Allocator*& instance() {
    static c10::Allocator* plain = c10::GetDefaultCPUAllocator();
    return plain;
  }

  c10::Allocator* plain_;
};

// A frozen page arrives, and is copied; random states and what ranks say of their files are small.
constexpr int64_t kSmallBytes = 16384;
constexpr int64_t kSize = 256, kLayers = 6, kPageBytes = kSize * kSize * 4;

struct Tower : torch::nn::Module {
  Tower() {
    for (int64_t i = 0; i < kLayers; ++i)
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(torch::nn::LinearOptions(kSize, kSize))));
    for (const std::size_t frozen : {1U, 2U, 4U}) layers[frozen]->weight.requires_grad_(false);
  }
  at::Tensor loss() {
    auto x = at::ones({2, kSize});
    for (auto& layer : layers) x = at::tanh(layer->forward(x));
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> layers;
};

std::string config_of(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 1,
             "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
             "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0}})";
}

void stays_small(RankContext& context, Counted& counted, int stage, const std::string& folder) {
  const auto config = config_of(stage);
  const auto made = [&] {
    const zero::Init init(config, context.group());
    return std::make_shared<Tower>();
  };
  const auto model = made();
  auto engine = initialize(*model, config, context.group());
  const auto train = [&] {
    engine->backward(model->loss());
    engine->step();
  };
  train();
  const auto of_step = counted.most_of(train);
  const auto limit = 2 * kPageBytes + kSmallBytes;
  EXPECT_LE(counted.most_of([&] { engine->save_checkpoint(folder, "a"); }), limit)
      << "a save at stage " << stage;
  const auto other = made();
  auto second = initialize(*other, config, context.group());
  // Below stage 3 it publishes all weights, as every step does.
  EXPECT_LE(counted.most_of([&] { second->load_checkpoint(folder, "a"); }),
            stage == 3 ? limit : of_step + kPageBytes)
      << "a load at stage " << stage;
  const auto want = engine->full_parameter("layer5.weight");
  EXPECT_TRUE(at::equal(second->full_parameter("layer5.weight"), want));
  EXPECT_GT(counted.most_of([&] { second->save_checkpoint(folder, "b", {.asynchronous = true}); }),
            kLayers * kPageBytes / context.world_size())
      << "an asynchronous save holds a copy of its part: what is held is counted";
  second->finish_checkpoint();
}

TEST(CheckpointMemory, ASaveAndALoadHoldOneTensorMore) {
  const ScratchFolder folder;
  EXPECT_EQ(on_ranks(2,
                     [&folder](RankContext& context) {
                       static Counted counted;
                       for (const int stage : {0, 1, 2, 3})
                         stays_small(context, counted, stage,
                                     folder.path("stage" + std::to_string(stage)));
                     }),
            "");
}

// 96 MiB of weights.
struct LargeTower : torch::nn::Module {
  static constexpr int64_t kWide = 512, kDeep = 96, kModelBytes = kDeep * kWide * kWide * 4;
  LargeTower() {
    const at::NoGradGuard no_grad;
    for (int64_t i = 0; i < kDeep; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i),
                          torch::nn::Linear(torch::nn::LinearOptions(kWide, kWide).bias(false))));
      layers.back()->weight.fill_(static_cast<double>(i));
    }
  }
  at::Tensor loss() {
    auto x = at::ones({2, kWide});
    for (auto& layer : layers) x = at::tanh(layer->forward(x));
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> layers;
};

// What the kernel counts of this process as its own memory; from here on that may grow by `bytes`.
void limit_memory(int64_t bytes) {
  ::setenv("EQUIGRAD_KEEP_MEMORY", "0", 1);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 16);  // what is freed is the kernel's again
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "VmData:") continue;
  int64_t now_kib = 0;
  ASSERT_TRUE(status >> now_kib);
  const auto most = static_cast<rlim_t>(now_kib * 1024 + bytes);
  const rlimit limit{most, most};
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
}

std::unique_ptr<Engine> engine_of(std::shared_ptr<LargeTower>& model, RankContext& context) {
  const std::string config = R"({"train_micro_batch_size_per_gpu": 1,
      "optimizer": {"type": "SGD", "params": {"lr": 0.001}},
      "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
                            "reduce_bucket_size": 300000, "stage3_max_live_parameters": 600000,
                            "stage3_prefetch_bucket_size": 300000}})";
  zero::Init init(config, context.group());
  model = std::make_shared<LargeTower>();
  init.finish();
  return initialize(*model, config, context.group());
}

// Two thirds of the model's weights are all the memory that a rank gets.
TEST(CheckpointMemory, AModelThatIsLargerThanARanksMemoryTrainsIsSavedAndLoaded) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       limit_memory(LargeTower::kModelBytes * 2 / 3);
                       EXPECT_THROW(LargeTower(), c10::Error) << "the limit limits nothing";
                     }),
            "");
  const ScratchFolder folder;
  EXPECT_EQ(on_ranks(4,
                     [&folder](RankContext& context) {
                       context.group()->broadcast(at::zeros({1}), 0)->wait();  // its threads exist
                       limit_memory(LargeTower::kModelBytes * 2 / 3);
                       std::shared_ptr<LargeTower> model;
                       auto engine = engine_of(model, context);
                       engine->backward(model->loss());
                       engine->step();
                       engine->save_checkpoint(folder.path("large"));
                       const auto want = engine->full_parameter("layer95.weight");
                       engine.reset();
                       model.reset();
                       engine = engine_of(model, context);
                       ASSERT_TRUE(engine->load_checkpoint(folder.path("large")).has_value());
                       EXPECT_THAT(engine->full_parameter("layer95.weight"),
                                   conformance::oracle::HasTheBitsOf(want));
                       engine->backward(model->loss());
                       engine->step();
                     }),
            "");
}

}  // namespace
}  // namespace equigrad
