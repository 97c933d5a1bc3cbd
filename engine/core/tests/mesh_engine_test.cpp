// An engine on a mesh trains as one on one rank that has the unsplit model: of whole numbers every
// sum is exact, so bits are equal, at every stage that a tensor group may have.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/relu.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <limits>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/error_of.hpp"
#include "conformance/testing/group_test.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/engine.hpp"
#include "engine/parallel/layers.hpp"
#include "engine/parallel/split_marks.hpp"

namespace equigrad {
namespace {

using comm::Mesh;
using comm::MeshSizes;
using conformance::error_of;
using conformance::ScratchFolder;
using conformance::whole_numbers;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using ::testing::HasSubstr;

constexpr int64_t kEntries = 8, kWidth = 4, kHidden = 8, kTokens = 6;

// An embedding, two layers, and a vector that every rank has.
struct Network : torch::nn::Module {
  explicit Network(const parallel::Group& group)
      : entries(kEntries, kWidth, group), up(kWidth, kHidden, group), down(kHidden, kWidth, group) {
    register_module("entries", entries);
    register_module("up", up);
    register_module("down", down);
    shift = register_parameter("shift", whole_numbers({kWidth}, 11));
    const at::NoGradGuard no_grad;
    int64_t seed = 1;
    for (auto& item : named_parameters()) {
      const auto split = parallel::split_of(item.value());
      const auto whole =
          whole_numbers(split ? at::IntArrayRef(split->shape) : item.value().sizes(), seed++);
      item.value().copy_(
          split ? parallel::part_of(whole, *split, group->rank(), group->world_size()) : whole);
    }
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return down(at::relu(up(entries(tokens) + shift)));
  }
  parallel::Embedding entries;
  parallel::ColumnLinear up;
  parallel::RowLinear down;
  at::Tensor shift;
};

at::Tensor tokens(int64_t data, int64_t step) {
  return (at::arange(kTokens) * 3 + data + step).remainder(kEntries);
}

void pass(Engine& engine, Network& network, int64_t data, int64_t step) {
  network.forward(tokens(data, step)).backward(whole_numbers({kTokens, kWidth}, data + step));
  engine.step();
}

struct Settings {
  int stage = 0;
  double clipping = 0;
  int tensor = 1;
  int accumulation = 1;
  std::string text() const {
    return fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {},
        "gradient_clipping": {}, "prescale_gradients": {},
        "zero_optimization": {{"stage": {}, "reduce_bucket_size": 20}},
        "optimizer": {{"type": "SGD", "params": {{"lr": 0.03125}}}},
        "tensor_parallel": {{"autotp_size": {}}}}})",
                       accumulation, clipping, stage == 1, stage, tensor);
  }
};

Mesh mesh_of(int rank, const MeshSizes& sizes, const std::string& file) {
  return comm::connect_gloo_mesh(rank, sizes, file, std::chrono::seconds(30));
}

// The unsplit model on one rank, one micro-batch for each data rank.
void expect_the_unsplit(Engine& engine, double norm, const Settings& settings, int data,
                        const std::string& file) {
  Network whole(nullptr);
  const auto alone = initialize(
      whole,
      Settings{.clipping = settings.clipping, .accumulation = settings.accumulation * data}.text(),
      Mesh(comm::connect_gloo(0, 1, file, std::chrono::seconds(30))));
  const int steps = settings.clipping > 0 ? 1 : 2;
  for (int step = 0; step < steps; ++step)
    for (int of = 0; of < data; ++of) pass(*alone, whole, of, step);
  EXPECT_EQ(norm, alone->get_global_grad_norm());
  for (const auto& item : whole.named_parameters())
    EXPECT_THAT(engine.full_parameter(item.key()), HasTheBitsOf(alone->full_parameter(item.key())))
        << item.key();
}

// Values that do not count: of what all ranks have rank 0's do, of a part the first data rank's.
void disturb(Network& network, int rank, const MeshSizes& sizes) {
  const at::NoGradGuard no_grad;
  for (auto& item : network.named_parameters())
    if (parallel::split_of(item.value()) ? comm::place_of(rank, sizes).data > 0 : rank > 0)
      item.value().add_(1);
}

void train(RankContext& context, const MeshSizes& sizes, Settings settings,
           const std::string& folder) {
  settings.tensor = sizes.tensor;
  const auto name = fmt::format("{}/{}-{}-{}-{}", folder, sizes.data, sizes.tensor, settings.stage,
                                settings.clipping);
  const auto mesh = mesh_of(context.rank(), sizes, name);
  Network network(mesh.tensor());
  disturb(network, context.rank(), sizes);
  const auto engine = initialize(network, settings.text(), mesh);
  const int steps = settings.clipping > 0 ? 1 : 2;
  const auto data = comm::place_of(context.rank(), sizes).data;
  for (int step = 0; step < steps; ++step) pass(*engine, network, data, step);
  expect_the_unsplit(*engine, engine->get_global_grad_norm().value(), settings, sizes.data,
                     name + fmt::format("-alone{}", context.rank()));
}

TEST(MeshEngine, WholeNumbersAreThoseOfTheUnsplitModel) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  for (const auto& sizes : {MeshSizes{.tensor = 2}, MeshSizes{.data = 2, .tensor = 2},
                            MeshSizes{.tensor = 4}, MeshSizes{.data = 2}}) {
    EXPECT_EQ(on_ranks(sizes.world_size(),
                       [&](RankContext& context) {
                         for (const int stage : {0, 1, 2})
                           for (const double clipping : {0.0, 1.5})
                             train(context, sizes, {.stage = stage, .clipping = clipping},
                                   folder.path());
                       }),
              "");
  }
}

// What is not finite on one rank of a tensor group alone stops all.
TEST(MeshEngine, AnOverflowInOnePartIsOneOfAll) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  EXPECT_EQ(on_ranks(4,
                     [&](RankContext& context) {
                       const MeshSizes sizes{.data = 2, .tensor = 2};
                       const auto mesh = mesh_of(context.rank(), sizes, folder.path("overflow"));
                       Network network(mesh.tensor());
                       if (context.rank() == 3)
                         network.up->weight.register_hook([](const at::Tensor& gradient) {
                           return gradient * std::numeric_limits<float>::infinity();
                         });
                       const auto engine =
                           initialize(network, Settings{.stage = 1, .tensor = 2}.text(), mesh);
                       network.forward(tokens(0, 0)).backward(whole_numbers({kTokens, kWidth}, 1));
                       EXPECT_THAT(error_of([&] { engine->step(); }), HasSubstr("up.weight"));
                     }),
            "");
}

// An observer of one rank throws: every rank of every group hears it at once, nobody steps, and the
// next step is one of all.
TEST(MeshEngine, AnObserverThatThrowsOnOneRankStopsAll) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  EXPECT_EQ(on_ranks(4,
                     [&](RankContext& context) {
                       const MeshSizes sizes{.data = 2, .tensor = 2};
                       const auto mesh = mesh_of(context.rank(), sizes, folder.path("observer"));
                       Network network(mesh.tensor());
                       const auto engine =
                           initialize(network, Settings{.stage = 1, .tensor = 2}.text(), mesh);
                       const auto before = engine->full_parameter("up.weight");
                       if (context.rank() == 3)
                         engine->on_step([](const auto&) { throw Error("observer", "mine"); });
                       EXPECT_THAT(error_of([&] { pass(*engine, network, 0, 0); }),
                                   HasSubstr(context.rank() == 3 ? "mine" : "rank 3"));
                       EXPECT_THAT(engine->full_parameter("up.weight"), HasTheBitsOf(before));
                       engine->on_step(nullptr);
                       pass(*engine, network, 0, 0);
                       EXPECT_EQ(engine->counters().global_steps, 1);
                     }),
            "");
}

TEST(MeshEngine, WhatDoesNotFitIsRefusedByName) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  EXPECT_EQ(
      on_ranks(2,
               [&](RankContext& context) {
                 const auto mesh = mesh_of(context.rank(), {.tensor = 2}, folder.path("refused"));
                 Network network(mesh.tensor());
                 EXPECT_THAT(error_of([&] { initialize(network, Settings{}.text(), mesh); }),
                             HasSubstr("got ranks of tensor 2"));
                 EXPECT_THAT(error_of([&] {
                               initialize(network, Settings{.tensor = 2}.text(), context.group());
                             }),
                             HasSubstr("got ranks of tensor 1"));
                 EXPECT_THAT(error_of([&] {
                               initialize(network, Settings{.stage = 3, .tensor = 2}.text(), mesh);
                             }),
                             HasSubstr("stage"));
                 const auto engine = initialize(network, Settings{.tensor = 2}.text(), mesh);
                 EXPECT_THAT(
                     error_of([&] { const auto gathered = engine->gather({network.up->weight}); }),
                     HasSubstr("a tensor group splits"));
               }),
      "");
}

}  // namespace
}  // namespace equigrad
