// An engine on a grid of sequence x tensor: every rank has a part of each sequence and some of the
// heads of each layer, and they train as one rank that has all of it.
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <filesystem>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/group_test.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/engine.hpp"
#include "engine/parallel/distributed_attention.hpp"
#include "engine/parallel/layers.hpp"
#include "engine/parallel/sequence.hpp"
#include "engine/parallel/split_marks.hpp"

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

constexpr int64_t kEntries = 8, kWidth = 8, kHeads = 4, kPerHead = 2, kLength = 8, kBatch = 2;

// The vocabulary and the heads are split over tensor ranks, the sequence over its own; places and
// gain are whole on all of them.
struct Network : torch::nn::Module {
  Network(const Mesh& mesh, int64_t key_value_heads)
      : entries(kEntries, kWidth, mesh.tensor()),
        query(kWidth, kHeads * kPerHead, mesh.tensor()),
        key(kWidth, key_value_heads * kPerHead, mesh.tensor()),
        value(kWidth, key_value_heads * kPerHead, mesh.tensor()),
        output(kHeads * kPerHead, kEntries, mesh.tensor()),
        attention(linear_attention, mesh.sequence()) {
    register_module("entries", entries);
    register_module("query", query);
    register_module("key", key);
    register_module("value", value);
    register_module("output", output);
    places = register_parameter("places", at::zeros({kLength, kWidth}));
    gain = register_parameter("gain", at::zeros({kWidth}));
    const at::NoGradGuard no_grad;
    int64_t seed = 1;
    for (auto& item : named_parameters()) {
      const auto split = parallel::split_of(item.value());
      const auto whole =
          small_numbers(split ? at::IntArrayRef(split->shape) : item.value().sizes(), seed++);
      item.value().copy_(split ? parallel::part_of(whole, *split, mesh.tensor()->rank(),
                                                   mesh.tensor()->world_size())
                               : whole);
    }
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions) {
    const auto hidden = entries(tokens) * gain + at::embedding(places, positions);
    const auto heads = [](const at::Tensor& of) { return of.unflatten(2, {-1, kPerHead}); };
    return output(
        attention(heads(query(hidden)), heads(key(hidden)), heads(value(hidden))).flatten(2));
  }
  parallel::Embedding entries;
  parallel::ColumnLinear query, key, value;
  parallel::RowLinear output;
  at::Tensor places, gain;
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
void pass(Engine& engine, Network& network, const parallel::Group& sequence, int64_t data) {
  const auto part = parallel::split_batch(batch(data), sequence);
  const auto counts = part.targets.ne(parallel::kIgnoredTarget);
  const auto logits = network.forward(part.tokens, part.positions);
  const auto losses = (logits * part.targets.clamp_min(0).unsqueeze(2).remainder(2)).sum(2);
  engine.backward(parallel::sequence_mean((losses * counts).sum(), counts.sum(), sequence));
  engine.step();
}

struct Settings {
  int stage = 0;
  double clipping = 0;
  int64_t key_value_heads = kHeads;
  std::string text(const MeshSizes& sizes, int accumulation) const {
    return fmt::format(R"({{"train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": {},
        "gradient_clipping": {}, "zero_optimization": {{"stage": {}, "reduce_bucket_size": 20}},
        "optimizer": {{"type": "SGD", "params": {{"lr": 0.03125}}}},
        "tensor_parallel": {{"autotp_size": {}}}, "sequence_parallel_size": {}}})",
                       kBatch, accumulation, clipping, stage, sizes.tensor, sizes.sequence);
  }
};

void train(RankContext& context, const MeshSizes& sizes, const Settings& settings,
           const std::string& folder) {
  const auto name =
      fmt::format("{}/{}-{}-{}-{}-{}-{}", folder, sizes.data, sizes.sequence, sizes.tensor,
                  settings.stage, settings.clipping, settings.key_value_heads);
  const auto wait = std::chrono::seconds(30);
  const auto mesh = comm::connect_gloo_mesh(context.rank(), sizes, name, wait);
  Network network(mesh, settings.key_value_heads);
  const auto engine = initialize(network, settings.text(sizes, 1), mesh);
  pass(*engine, network, mesh.sequence(), comm::place_of(context.rank(), sizes).data);

  Network whole(Mesh(), settings.key_value_heads);
  const auto alone =
      initialize(whole, Settings{.clipping = settings.clipping}.text({}, sizes.data),
                 Mesh(comm::connect_gloo(0, 1, fmt::format("{}-{}", name, context.rank()), wait)));
  for (int of = 0; of < sizes.data; ++of) pass(*alone, whole, nullptr, of);
  EXPECT_GT(alone->get_global_grad_norm().value(), settings.clipping);
  EXPECT_EQ(engine->get_global_grad_norm(), alone->get_global_grad_norm());
  for (const auto& item : whole.named_parameters())
    EXPECT_THAT(engine->full_parameter(item.key()), HasTheBitsOf(alone->full_parameter(item.key())))
        << item.key() << " at stage " << settings.stage;
}

TEST(GridEngine, WholeNumbersAreThoseOfTheUnsplitModelOnWholeSequences) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  const MeshSizes sizes{.sequence = 2, .tensor = 2};
  EXPECT_EQ(on_ranks(sizes.world_size(),
                     [&](RankContext& context) {
                       for (const int stage : {0, 1, 2})
                         for (const double clipping : {0.0, 1.5})
                           for (const int64_t heads : {2, 4})
                             train(context, sizes,
                                   {.stage = stage, .clipping = clipping, .key_value_heads = heads},
                                   folder.path());
                     }),
            "");
}

TEST(GridEngine, SeveralDataRanksBesideBothToo) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  const MeshSizes sizes{.data = 2, .sequence = 2, .tensor = 2};
  EXPECT_EQ(on_ranks(sizes.world_size(),
                     [&](RankContext& context) {
                       for (const int stage : {0, 1, 2})
                         for (const int64_t heads : {2, 4})
                           train(context, sizes,
                                 {.stage = stage, .clipping = 1.5, .key_value_heads = heads},
                                 folder.path());
                     }),
            "");
}

}  // namespace
}  // namespace equigrad
