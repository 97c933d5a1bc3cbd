// Step time and peak memory of a rank: the engine at every stage, beside one device without it.
//
//   reference   the reference trainer: one device, plain loops, every step recorded
//   libtorch    forward, backward and torch::optim::AdamW: what one writes without an engine (bf16:
//   no masters) stage_0-3   the engine
//
// At two ranks the first two run on both, without talking: what two ranks cost when nothing is
// shared but the machine. So a ratio to libtorch is the price of distribution alone.
// Every rank has its own batch of the same size; accumulation 1; AdamW.
#include <torch/optim/adamw.h>

#include <equigrad_build_info.hpp>

#include "conformance/cases/recipe.hpp"
#include "engine/engine.hpp"
#include "engine/memory/ledger.hpp"
#include "perf/perf_ranks.hpp"
#include "reference/trainer.hpp"

namespace equigrad::perf {
namespace {

using conformance::ranks::RankContext;
using nlohmann::json;

constexpr uint64_t kSeed = 1;
constexpr int64_t kBatchSize = 4;

const reference::Data& text() {
  static const reference::Data data(reference::read_text(
      {std::string(build_info::source_directory()) + "/reference/data/plays_slice.txt"}));
  return data;
}

reference::GptOptions size_of(const json& settings) {
  return {settings.at("layers"), settings.at("dim"), settings.at("heads"), settings.at("context")};
}

EngineConfig config_of(const json& settings, int stage, int world) {
  EngineConfig config;
  config.train_micro_batch_size_per_gpu = kBatchSize;
  config.train_batch_size = kBatchSize * world;
  config.zero.stage = stage;
  if (settings.at("bf16")) config.precision.param = config.precision.accumulate = DataType::Bf16;
  // Smaller than the models, so that buckets, prefetch and paging have something to do.
  config.zero.reduce_bucket_size = config.zero.allgather_bucket_size = settings.at("bucket_size");
  config.zero.stage3_prefetch_bucket_size = settings.at("bucket_size");
  config.zero.stage3_param_persistence_threshold = 1000;
  config.zero.stage3_max_live_parameters = settings.at("bucket_size");
  return config;
}

// A model and its batches, one a step.
class Training : public Variant {
 public:
  Training(const json& settings, RankContext& context)
      : model_(reference::make_gpt(size_of(settings), kSeed)),
        context_length_(settings.at("context")),
        rank_(context.rank()),
        dtype_(settings.at("bf16").get<bool>() ? at::kBFloat16 : at::kFloat) {}

 protected:
  reference::Batch batch(int64_t step) const {
    return text().text_batch(kBatchSize, context_length_, {kSeed, step, rank_, 0});
  }
  std::shared_ptr<reference::Model> model_;
  int64_t context_length_;
  int64_t rank_;
  at::ScalarType dtype_;
  int64_t step_ = 0;
};

class Reference final : public Training {
 public:
  Reference(const json& settings, RankContext& context)
      : Training(settings, context),
        trainer_(conformance::recipe_of(config_of(settings, 0, 1), 1, kSeed), model_,
                 [this](int64_t step, int64_t, int64_t) { return batch(step); }) {}
  void run() override { trainer_.train_step(); }

 private:
  reference::Trainer trainer_;
};

class Libtorch final : public Training {
 public:
  Libtorch(const json& settings, RankContext& context)
      : Training(settings, context), optimizer_(parameters(), torch::optim::AdamWOptions(1e-3)) {}
  void run() override {
    optimizer_.zero_grad();
    model_->loss(batch(step_++)).backward();
    optimizer_.step();
  }

 private:
  std::vector<at::Tensor> parameters() const {
    model_->to(dtype_);
    return model_->parameters();
  }
  torch::optim::AdamW optimizer_;
};

class OnEngine final : public Training {
 public:
  OnEngine(const json& settings, int stage, RankContext& context) : Training(settings, context) {
    ParameterGroup all;
    for (const auto& [name, tensor] : reference::unique_parameters(*model_))
      all.parameters.push_back({name, tensor});
    engine_ = initialize({all}, config_of(settings, stage, context.world_size()), context.group());
  }
  void run() override {
    engine_->backward(model_->loss(batch(step_++)));
    engine_->step();
  }
  int64_t peak_bytes() const override { return engine_->ledger().total_peak_bytes(); }

 private:
  std::unique_ptr<Engine> engine_;
};

std::unique_ptr<Variant> make(const std::string& variant, const json& settings,
                              RankContext& context) {
  if (variant == "reference") return std::make_unique<Reference>(settings, context);
  if (variant == "libtorch") return std::make_unique<Libtorch>(settings, context);
  return std::make_unique<OnEngine>(settings, variant.back() - '0', context);
}

void register_model(const std::string& name, const json& settings, int rounds) {
  for (const int world : {1, 2}) {
    Group group;
    group.name = "step/" + name + "/ranks:" + std::to_string(world);
    group.world = world;
    group.variants = {"reference", "libtorch", "stage_0", "stage_1", "stage_2", "stage_3"};
    group.bases = {"reference", "libtorch"};
    group.rounds = rounds;
    group.memory = true;
    group.settings = settings;
    register_group(group, make);
  }
}

json gpt(int layers, int dim, int heads, int context, int bucket_size, bool bf16) {
  return {{"layers", layers},   {"dim", dim},   {"heads", heads},
          {"context", context}, {"bf16", bf16}, {"bucket_size", bucket_size}};
}

// bf16 products are 25 times slower than fp32 on a processor without AVX-512: a tiny model only.
[[maybe_unused]] const bool registered = [] {
  register_model("gpt_tiny/fp32", gpt(2, 24, 2, 16, 10'000, false), 41);
  register_model("gpt_tiny/bf16", gpt(2, 24, 2, 16, 10'000, true), 41);
  register_model("gpt_0.4M/fp32", gpt(3, 96, 4, 64, 100'000, false), 31);
  register_model("gpt_5M/fp32", gpt(6, 256, 8, 64, 1'000'000, false), 15);
  return true;
}();

}  // namespace
}  // namespace equigrad::perf
