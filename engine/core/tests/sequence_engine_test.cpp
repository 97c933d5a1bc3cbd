// An engine whose ranks have parts of a sequence trains as one on one rank that has whole ones: of
// whole numbers every sum is exact, so bits are equal, at every stage.
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/group_test.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/engine.hpp"
#include "engine/parallel/distributed_attention.hpp"
#include "engine/parallel/sequence.hpp"

namespace equigrad {
namespace {

using comm::Mesh;
using comm::MeshSizes;
using conformance::linear_attention;
using conformance::ScratchFolder;
using conformance::small_numbers;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using parallel::Group;

constexpr int64_t kEntries = 8, kWidth = 8, kHeads = 4, kLength = 8, kBatch = 2;

struct Network : torch::nn::Module {
  Network(const Group& group, int64_t key_value_heads)
      : entries(kEntries, kWidth),
        places(kLength, kWidth),
        query(kWidth, kWidth),
        key(kWidth, kWidth / kHeads * key_value_heads),
        value(kWidth, kWidth / kHeads * key_value_heads),
        output(kWidth, kEntries),
        attention(linear_attention, group) {
    register_module("entries", entries);
    register_module("places", places);
    register_module("query", query);
    register_module("key", key);
    register_module("value", value);
    register_module("output", output);
    gain = register_parameter("gain", at::Tensor(small_numbers({kWidth}, 11)));
    const at::NoGradGuard no_grad;
    int64_t seed = 1;
    for (auto& item : named_parameters())
      item.value().copy_(small_numbers(item.value().sizes(), seed++));
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions) {
    const auto hidden = entries(tokens) * gain + places(positions);
    const auto heads = [](const at::Tensor& of) { return of.unflatten(2, {-1, kWidth / kHeads}); };
    return output(
        attention(heads(query(hidden)), heads(key(hidden)), heads(value(hidden))).flatten(2));
  }
  torch::nn::Embedding entries, places;
  torch::nn::Linear query, key, value, output;
  at::Tensor gain;
  parallel::DistributedAttention<decltype(&linear_attention)> attention;
};

parallel::WholeBatch batch(int64_t data) {
  const auto tokens = (at::arange(kBatch * kLength) * 3 + data).remainder(kEntries);
  auto labels = tokens.clone().view({kBatch, kLength});
  // 4 count in each, a power of two: 1 in the first half, and 3 in the second.
  labels.narrow(1, 0, 2).fill_(parallel::kIgnoredTarget);
  labels.narrow(1, 3, 2).fill_(parallel::kIgnoredTarget);
  return {.tokens = tokens.view({kBatch, kLength}), .labels = labels, .positions = {}};
}

// Whole numbers instead of -log softmax; the mean over those that count.
void pass(Engine& engine, Network& network, const Group& group, int64_t data) {
  const auto part = parallel::split_batch(batch(data), group);
  const auto counts = part.targets.ne(parallel::kIgnoredTarget);
  const auto logits = network.forward(part.tokens, part.positions);
  const auto losses = (logits * part.targets.clamp_min(0).unsqueeze(2).remainder(2)).sum(2);
  engine.backward(parallel::sequence_mean((losses * counts).sum(), counts.sum(), group));
  engine.step();
}

std::string settings(int stage, int sequence, int accumulation) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": {},
      "zero_optimization": {{"stage": {}, "reduce_bucket_size": 20,
                            "stage3_param_persistence_threshold": 0}},
      "optimizer": {{"type": "SGD", "params": {{"lr": 0.03125}}}},
      "sequence_parallel_size": {}}})",
                     kBatch, accumulation, stage, sequence);
}

void train(RankContext& context, const MeshSizes& sizes, int stage, int64_t key_value_heads,
           const std::string& folder) {
  const auto name =
      fmt::format("{}/{}-{}-{}-{}", folder, sizes.data, sizes.sequence, stage, key_value_heads);
  const auto wait = std::chrono::seconds(30);
  const auto mesh = comm::connect_gloo_mesh(context.rank(), sizes, name, wait);
  Network network(mesh.sequence(), key_value_heads);
  const auto engine = initialize(network, settings(stage, sizes.sequence, 1), mesh);
  pass(*engine, network, mesh.sequence(), comm::place_of(context.rank(), sizes).data);

  Network whole(nullptr, key_value_heads);
  const auto alone =
      initialize(whole, settings(0, 1, sizes.data),
                 Mesh(comm::connect_gloo(0, 1, fmt::format("{}-{}", name, context.rank()), wait)));
  for (int of = 0; of < sizes.data; ++of) pass(*alone, whole, nullptr, of);
  EXPECT_GT(alone->get_global_grad_norm().value(), 0.0);
  EXPECT_EQ(engine->get_global_grad_norm(), alone->get_global_grad_norm());
  for (const auto& item : whole.named_parameters())
    EXPECT_THAT(engine->full_parameter(item.key()), HasTheBitsOf(alone->full_parameter(item.key())))
        << item.key() << " at stage " << stage;
}

TEST(SequenceEngine, WholeNumbersAreThoseOfWholeSequences) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  for (const auto& sizes :
       {MeshSizes{.sequence = 2}, MeshSizes{.data = 2, .sequence = 2}, MeshSizes{.sequence = 4}}) {
    EXPECT_EQ(on_ranks(sizes.world_size(),
                       [&](RankContext& context) {
                         for (const int stage : {0, 1, 2, 3})
                           for (const int64_t key_value_heads : {1, 4})
                             train(context, sizes, stage, key_value_heads, folder.path());
                       }),
              "");
  }
}

}  // namespace
}  // namespace equigrad
