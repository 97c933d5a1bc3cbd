// An engine on a mesh trains as one on one rank that has the unsplit model: of whole numbers every
// sum is exact, so bits are equal, at every stage that a tensor group may have.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/relu.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <limits>
#include <map>
#include <optional>

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
  bool bf16 = false, fp16 = false;
  std::string text() const {
    return fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {},
        "gradient_clipping": {}, "prescale_gradients": {},
        "zero_optimization": {{"stage": {}, "reduce_bucket_size": 20}},
        "optimizer": {{"type": "SGD", "params": {{"lr": 0.03125}}}},
        "tensor_parallel": {{"autotp_size": {}}}, "bf16": {{"enabled": {}}},
        "fp16": {{"enabled": {}, "initial_scale_power": 4, "hysteresis": 1}}}})",
                       accumulation, clipping, stage == 1, stage, tensor, bf16, fp16);
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

TEST(MeshEngine, UnderALossScaleAnOverflowInOnePartSkipsTheStepOfAll) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  for (const int stage : {0, 1, 2}) {
    EXPECT_EQ(on_ranks(4,
                       [&](RankContext& context) {
                         const auto mesh = mesh_of(context.rank(), {.data = 2, .tensor = 2},
                                                   folder.path("scaled" + std::to_string(stage)));
                         Network network(mesh.tensor());
                         if (context.rank() == 3)
                           network.up->weight.register_hook([](const at::Tensor& gradient) {
                             return gradient * std::numeric_limits<float>::infinity();
                           });
                         const auto engine = initialize(
                             network, Settings{.stage = stage, .tensor = 2, .fp16 = true}.text(),
                             mesh);
                         const auto before = engine->full_parameter("shift");
                         const auto out = network.forward(tokens(0, 0));
                         engine->backward((out * out).mean());
                         engine->step();
                         EXPECT_FALSE(engine->was_step_applied());
                         EXPECT_EQ(engine->loss_scale(), 8);
                         EXPECT_THAT(engine->full_parameter("shift"), HasTheBitsOf(before));
                       }),
              "");
  }
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

// ---- gather() -----------------------------------------------------------------------------------

struct Held {
  comm::Mesh mesh;
  Network network;
  std::unique_ptr<Engine> engine;
  std::map<std::string, at::Tensor> before;  // whole

  Held(RankContext& context, const MeshSizes& sizes, const Settings& settings,
       const std::string& file)
      : mesh(mesh_of(context.rank(), sizes, file)),
        network(mesh.tensor()),
        engine(initialize(network, settings.text(), mesh)) {
    note();
  }
  void note() {
    for (const auto& item : network.named_parameters())
      before[item.key()] = engine->full_parameter(item.key());
  }
  std::vector<at::Tensor> all() {
    std::vector<at::Tensor> tensors;
    for (const auto& item : network.named_parameters()) tensors.push_back(item.value());
    return tensors;
  }
  void expect_as_before() {
    for (const auto& item : network.named_parameters()) {
      EXPECT_THAT(engine->full_parameter(item.key()), HasTheBitsOf(before.at(item.key())));
      const auto split = parallel::split_of(item.value());
      if (split) EXPECT_NE(item.value().sizes(), at::IntArrayRef(split->shape)) << item.key();
    }
  }
};

// On every mesh, at every stage that it may have.
template <class Call>
void on_meshes(const ScratchFolder& folder, const Call& call) {
  std::filesystem::create_directories(folder.path());
  for (const auto& sizes : {MeshSizes{.tensor = 2}, MeshSizes{.data = 2, .tensor = 2}})
    EXPECT_EQ(on_ranks(sizes.world_size(),
                       [&](RankContext& context) {
                         for (const int stage : {0, 1, 2}) {
                           const Settings settings{.stage = stage, .tensor = sizes.tensor};
                           const auto file = folder.path(fmt::format("{}-{}", sizes.data, stage));
                           call(context, sizes, settings, file);
                         }
                       }),
              "");
}

TEST(MeshGather, HasTheWholeOfWhatIsSplitAndLayersRefuseToComputeWithIt) {
  const ScratchFolder folder;
  on_meshes(folder, [](RankContext& context, const MeshSizes& sizes, const Settings& settings,
                       const std::string& file) {
    Held it(context, sizes, settings, file);
    auto scope = it.engine->gather(it.all());
    for (const auto& item : it.network.named_parameters())
      EXPECT_THAT(item.value().detach(), HasTheBitsOf(it.before.at(item.key()))) << item.key();
    EXPECT_THAT(error_of([&] { it.engine->step(); }), HasSubstr("gather"));
    scope.end();
    it.expect_as_before();
    for (const auto& weight :
         {it.network.entries->weight, it.network.up->weight, it.network.down->weight}) {
      const auto of_one = it.engine->gather({weight});
      EXPECT_THAT(error_of([&] { it.network.forward(tokens(0, 0)); }),
                  HasSubstr("a scope of gather() holds"));
    }
    pass(*it.engine, it.network, 0, 0);
  });
}

// Scopes that only read, or are left by an exception of every rank, between a pass's two halves.
TEST(MeshGather, AGraphOfBeforeAScopeThatWritesNothingIsAsGoodAsBefore) {
  const ScratchFolder folder;
  on_meshes(folder, [](RankContext& context, const MeshSizes& sizes, const Settings& settings,
                       const std::string& file) {
    Held it(context, sizes, settings, file);
    const auto output = it.network.forward(tokens(0, 0));
    { const auto scope = it.engine->gather(it.all()); }
    const auto throwing = [&] {
      const auto scope = it.engine->gather(it.all(), 0);
      throw Error("test", "mine");
    };
    EXPECT_THAT(error_of(throwing), HasSubstr("mine"));
    output.backward(whole_numbers({kTokens, kWidth}, 0));
    it.engine->step();
    EXPECT_EQ(it.engine->counters().global_steps, 1);
  });
}

// What one rank writes is cut for all, and the run goes on as that of the unsplit model.
TEST(MeshGather, WhatTheModifierWroteIsCutAndTrainingGoesOnAsTheUnsplitModels) {
  const ScratchFolder folder;
  const auto write = [](Network& network) {
    const at::NoGradGuard no_grad;
    network.up->weight.select(0, 5).fill_(3);
    network.up->weight.select(0, 0).fill_(-2);
    network.down->weight.select(1, 6).add_(1);
    network.shift.select(0, 1).fill_(7);
  };
  on_meshes(folder, [&](RankContext& context, const MeshSizes& sizes, const Settings& settings,
                        const std::string& file) {
    Held it(context, sizes, settings, file);
    const int modifier = sizes.world_size() - 1;
    {
      const auto scope = it.engine->gather(it.all(), modifier);
      if (context.rank() == modifier) write(it.network);
    }
    Network whole(nullptr);
    const auto alone =
        initialize(whole, Settings{.accumulation = static_cast<int>(sizes.data)}.text(),
                   Mesh(comm::connect_gloo(0, 1, file + fmt::format("-alone{}", context.rank()),
                                           std::chrono::seconds(30))));
    {
      const auto scope = alone->gather({whole.up->weight, whole.down->weight, whole.shift}, 0);
      write(whole);
    }
    for (int step = 0; step < 2; ++step) {
      pass(*it.engine, it.network, comm::place_of(context.rank(), sizes).data, step);
      for (int of = 0; of < sizes.data; ++of) pass(*alone, whole, of, step);
    }
    for (const auto& item : whole.named_parameters())
      EXPECT_THAT(it.engine->full_parameter(item.key()),
                  HasTheBitsOf(alone->full_parameter(item.key())))
          << item.key();
  });
}

// Masters of bf16 weights have bits that the weights have not.
TEST(MeshGather, OnlyTheBitsThatWereWrittenReplaceMasters) {
  const ScratchFolder folder;
  on_meshes(folder, [](RankContext& context, const MeshSizes& sizes, Settings settings,
                       const std::string& file) {
    settings.bf16 = true;
    Held it(context, sizes, settings, file);
    for (int step = 0; step < 2; ++step) {
      it.network.forward(tokens(0, step))
          .backward(whole_numbers({kTokens, kWidth}, step).to(at::kBFloat16));
      it.engine->step();
    }
    auto want = it.engine->access().full_master("up.weight").clone();  // of this rank's part
    {
      const auto scope = it.engine->gather({it.network.up->weight}, 0);
      const at::NoGradGuard no_grad;
      if (context.rank() == 0) it.network.up->weight.index_put_({7, 2}, at::full({}, 5.0));
    }
    const auto rows = want.size(0);
    if (it.mesh.tensor()->rank() == 7 / rows) want.index_put_({7 % rows, 2}, at::full({}, 5.0));
    EXPECT_THAT(it.engine->access().full_master("up.weight"), HasTheBitsOf(want));
  });
}

TEST(MeshGather, AWriteElsewhereAnExceptionAndCallsThatDifferAreErrorsOfAll) {
  const ScratchFolder folder;
  on_meshes(folder, [](RankContext& context, const MeshSizes& sizes, const Settings& settings,
                       const std::string& file) {
    Held it(context, sizes, settings, file);
    const int last = sizes.world_size() - 1;
    const auto tried = [&](std::optional<int> modifier, const auto& inside) {
      return error_of([&] {
        auto scope = it.engine->gather(it.all(), modifier);
        inside();
        scope.end();
      });
    };
    const auto writes = [&](int rank) {
      return [&, rank] {
        const at::NoGradGuard no_grad;
        if (context.rank() == rank) it.network.down->weight.add_(1);
      };
    };
    EXPECT_THAT(tried(0, writes(last)), HasSubstr("expected writes on rank 0 only"));
    it.expect_as_before();
    EXPECT_THAT(tried({}, writes(last)), HasSubstr("no writes without a modifier rank"));
    it.expect_as_before();
    const auto thrown = tried(0, [&] {
      writes(0)();
      if (context.rank() == last) throw Error("test", "of this rank alone");
    });
    EXPECT_THAT(thrown, HasSubstr(context.rank() == last ? "of this rank alone" : "exception"));
    it.expect_as_before();
    EXPECT_THAT(tried(context.rank() == last ? 0 : 1, [] {}),
                HasSubstr("the same parameters and modifier rank on every rank"));
    it.expect_as_before();
    EXPECT_THAT(tried(last + 1, [] {}), HasSubstr("a modifier rank from 0 to"));
    EXPECT_EQ(tried(last, [] {}), "");
    it.expect_as_before();
  });
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
               }),
      "");
}

}  // namespace
}  // namespace equigrad
