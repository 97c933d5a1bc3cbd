// A run on a mesh that is saved and loaded is the run that was never interrupted; on another mesh
// it has the same parameters, masters and optimizer states, and goes on alike where sums are exact.
#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <filesystem>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/error_of.hpp"
#include "conformance/testing/group_test.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/checkpoint/difference.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/core/saved_engine.hpp"
#include "engine/core/whole_tensor.hpp"
#include "engine/engine.hpp"
#include "engine/parallel/regions.hpp"
#include "engine/parallel/split_marks.hpp"

namespace equigrad {
namespace {

using checkpoint::SavedCheckpoint;
using comm::Mesh;
using comm::MeshSizes;
using conformance::error_of;
using conformance::ScratchFolder;
using conformance::whole_numbers;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using parallel::Split;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMicroBatches = 4;  // of a step, of all data ranks

struct Whole {
  std::string name;
  std::vector<int64_t> shape;
  std::optional<Split> split = {};
  bool is_trained = true;
};

std::vector<Whole> wholes(const std::vector<int64_t>& packing) {
  return {{"packed", {12, 3}, Split{0, packing, {12, 3}}},
          {"bias", {12}, Split{0, packing, {12}}},
          {"rows", {3, 8}, Split{1, {8}, {3, 8}}},
          {"deep", {2, 8, 3}, Split{1, {4, 4}, {2, 8, 3}}},
          {"shared", {7}},
          {"wide", {5, 3}},
          {"frozen_part", {8, 2}, Split{0, {8}, {8, 2}}, false},
          {"frozen", {3}, {}, false}};
}

// Its parameters are this rank's parts, and its loss their product with a part of a whole factor:
// so gradients are those of the unsplit model.
struct Network : torch::nn::Module {
  Network(Mesh ranks, int64_t seed, const std::vector<int64_t>& packing = {4, 8})
      : mesh(std::move(ranks)), all(wholes(packing)) {
    for (const auto& one : all) {
      const auto value = part(one, whole_numbers(one.shape, seed++) * 0.3);
      register_parameter(one.name, value, one.is_trained);
      if (mesh.tensor() && one.split)
        parallel::mark_split(named_parameters()[one.name], *one.split, mesh.tensor()->world_size());
    }
    seen = register_buffer("seen", at::full({2}, static_cast<double>(seed)));
  }
  at::Tensor part(const Whole& one, const at::Tensor& whole) const {
    if (!mesh.tensor() || !one.split) return whole.clone();
    const auto& tensor = *mesh.tensor();
    return parallel::part_of(whole, *one.split, tensor.rank(), tensor.world_size());
  }
  // Of a micro-batch; ranks of a sequence have summands of its factor.
  at::Tensor loss(int64_t batch, const std::string& without) {
    const auto place = comm::place_of(mesh.world()->rank(), mesh.sizes());
    auto sum = at::zeros({});
    int64_t seed = 10 * batch;
    for (const auto& one : all) {
      auto factor = whole_numbers(one.shape, ++seed);
      if (mesh.sequence()) {
        const auto other = whole_numbers(one.shape, 3);
        factor = place.sequence == 0 ? factor - other : other;
      }
      if (one.name == without) continue;
      const auto value = named_parameters()[one.name].to(at::kFloat);
      const auto product = value * part(one, factor);
      sum = sum + (product + (is_exact ? at::zeros({}) : product * value * at::rand({1}))).sum();
    }
    return sum;
  }
  Mesh mesh;
  std::vector<Whole> all;
  at::Tensor seen;
  bool is_exact = false;  // gradients are whole numbers
};

struct Trial {
  MeshSizes sizes;
  int stage = 0;
  std::string more = "";
  std::string text() const {
    return fmt::format(
        R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {},
             "gradient_clipping": 2.5,
             "zero_optimization": {{"stage": {}, "reduce_bucket_size": 20,
                                    "stage3_param_persistence_threshold": 0}},
             "optimizer": {{"type": "AdamW", "params": {{"lr": 0.03, "weight_decay": 0.1}}}},
             "tensor_parallel": {{"autotp_size": {}}}, "sequence_parallel_size": {} {}}})",
        kMicroBatches / sizes.data, stage, sizes.tensor, sizes.sequence, more);
  }
  std::string name() const {
    return fmt::format("{}x{}x{} at stage {} {}", sizes.data, sizes.sequence, sizes.tensor, stage,
                       more);
  }
};

Mesh mesh_at(int rank, const MeshSizes& sizes, const std::string& file) {
  return comm::connect_gloo_mesh(rank, sizes, file, std::chrono::seconds(60));
}

struct Trained {
  Network network;
  std::unique_ptr<Engine> engine;
  comm::MeshPlace place;

  Trained(const Mesh& mesh, const Trial& run, int64_t seed, bool is_exact)
      : network(mesh, seed),
        engine(initialize(network, run.text(), mesh)),
        place(comm::place_of(mesh.world()->rank(), run.sizes)) {
    network.is_exact = is_exact;
    at::manual_seed(static_cast<uint64_t>(100 * seed + 10 * place.data + place.sequence));
  }
  void train(int64_t step, const std::string& without = "") {
    const auto own = kMicroBatches / network.mesh.sizes().data;
    for (int64_t k = 0; k < own; ++k) {
      engine->backward(network.loss(kMicroBatches * step + own * place.data + k, without));
      engine->step();
    }
    network.seen += network.mesh.world()->rank() + 1;
  }
};

// What the file has of every trained parameter, without the engine's own reading of parts.
void expect_whole_masters(Trained& it, const std::string& folder) {
  const auto saved = SavedCheckpoint::open(folder, "here");
  for (const auto& one : it.network.all) {
    const auto want = it.engine->full_parameter(one.name);
    const auto name = (one.is_trained ? "master/" : "parameter/") + one.name;
    ASSERT_EQ(saved.entry(name).shape, one.shape);
    auto got = at::empty(one.shape, core::scalar_type_of(saved.entry(name).type));
    saved.read(name, 0, got.numel(), got.mutable_data_ptr());
    EXPECT_THAT(got.to(want.scalar_type()), HasTheBitsOf(want)) << name;
  }
}

void save_and_go_on(RankContext& context, const Trial& run, const std::string& folder,
                    bool is_exact) {
  const auto mesh = mesh_at(context.rank(), run.sizes, folder + "-first");
  Trained it(mesh, run, 1, is_exact);
  for (int64_t step = 0; step < 3; ++step) it.train(step);
  it.engine->save_checkpoint(folder, "here");
  expect_whole_masters(it, folder);
  for (int64_t step = 3; step < 5; ++step) it.train(step);
  it.engine->save_checkpoint(folder, "never", {.save_latest = false});
}

void resume(RankContext& context, const Trial& run, const std::string& folder, bool is_exact) {
  const auto mesh = mesh_at(context.rank(), run.sizes, folder + "-second");
  Trained it(mesh, run, 50, is_exact);
  it.train(77);
  ASSERT_TRUE(it.engine->load_checkpoint(folder).has_value());
  it.engine->save_checkpoint(folder, "again", {.save_latest = false, .asynchronous = true});
  it.engine->finish_checkpoint();
  for (int64_t step = 3; step < 5; ++step) it.train(step);
  it.engine->save_checkpoint(folder, "resumed", {.save_latest = false});
}

// All tensors and settings; `on_one_mesh`: those that are a rank's own too.
void expect_equal_tags(const std::string& folder, const std::string& one, const std::string& other,
                       bool on_one_mesh) {
  const auto a = SavedCheckpoint::open(folder, one), b = SavedCheckpoint::open(folder, other);
  for (const auto& found : checkpoint::differences(a, b))
    if (on_one_mesh || !found.name.starts_with("rank"))
      ADD_FAILURE() << found.name << ": " << found.what << found.differ_numel << " of "
                    << found.numel << " differ between " << one << " and " << other;
  for (const auto& found : checkpoint::setting_differences(a.manifest(), b.manifest()))
    if (on_one_mesh || found.path != "/engine/counters/micro_steps")
      ADD_FAILURE() << found.path << ": " << found.a << " and " << found.b << " of " << other;
}

TEST(MeshCheckpoint, AResumedRunIsTheOneThatWasNeverInterrupted) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  const std::vector<std::string> modes{
      "", R"(, "reduction": "exact")", R"(, "reduction": "native")",
      R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true, "initial_scale_power": 8})"};
  const std::vector<Trial> trials{{{.tensor = 2}, 0},
                                  {{.data = 2, .tensor = 2}, 1},
                                  {{.sequence = 2, .tensor = 2}, 2},
                                  {{.data = 2, .sequence = 2}, 3},
                                  {{.data = 2, .tensor = 2}, 2}};
  for (std::size_t i = 0; i < trials.size(); ++i) {
    for (const auto mode : {std::size_t{0}, 1 + i % 4, 1 + (i + 1) % 4}) {
      const Trial trial{trials[i].sizes, trials[i].stage, modes[mode]};
      SCOPED_TRACE(trial.name());
      const auto path = folder.path(fmt::format("{}-{}", i, mode));
      EXPECT_EQ(on_ranks(trial.sizes.world_size(),
                         [&](RankContext& context) {
                           save_and_go_on(context, trial, path, false);
                           resume(context, trial, path, false);
                         }),
                "");
      expect_equal_tags(path, "here", "again", true);
      expect_equal_tags(path, "never", "resumed", true);
    }
  }
}

TEST(MeshCheckpoint, OnAnotherMeshItGoesOn) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  const std::string exact = R"(, "reduction": "exact")";
  const std::vector<std::pair<Trial, Trial>> pairs{
      {{{.tensor = 2}, 0}, {{.data = 2}, 2}},
      {{{.tensor = 4}, 1}, {{.data = 2, .tensor = 2}, 2}},
      {{{.sequence = 2}, 3}, {{}, 0}},
      {{{.sequence = 2, .tensor = 2}, 2}, {{.data = 4}, 3}},
      {{{.data = 2, .tensor = 2}, 1}, {{}, 0}}};
  for (const auto& [one, other] : pairs) {
    for (const auto& [from, to] : {std::pair{one, other}, std::pair{other, one}}) {
      const Trial first{from.sizes, from.stage, exact}, second{to.sizes, to.stage, exact};
      SCOPED_TRACE(first.name() + " to " + second.name());
      const auto path = folder.path(fmt::format("{}-{}", first.name(), second.name()));
      EXPECT_EQ(on_ranks(first.sizes.world_size(),
                         [&](RankContext& context) { save_and_go_on(context, first, path, true); }),
                "");
      EXPECT_EQ(on_ranks(second.sizes.world_size(),
                         [&](RankContext& context) { resume(context, second, path, true); }),
                "");
      expect_equal_tags(path, "here", "again", false);
      expect_equal_tags(path, "never", "resumed", false);
    }
  }
}

TEST(MeshCheckpoint, WhatCannotGoOnIsAnErrorByName) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  EXPECT_EQ(on_ranks(2,
                     [&](RankContext& context) {
                       const Trial run{{.tensor = 2}, 1};
                       const auto mesh = mesh_at(context.rank(), run.sizes, folder.path("ranks"));
                       Trained it(mesh, run, 1, true);
                       it.train(0);
                       it.engine->save_checkpoint(folder.path("a"), "here");
                       Network other(mesh, 1, {12});
                       const auto engine = initialize(other, run.text(), mesh);
                       EXPECT_THAT(error_of([&] { engine->load_checkpoint(folder.path("a")); }),
                                   AllOf(HasSubstr("\"packed\" packed as [12] along dimension 0"),
                                         HasSubstr("got [4, 8]")));
                       // On one rank only this part of it has a gradient.
                       it.train(1, context.rank() == 1 ? "rows" : "");
                       EXPECT_THAT(error_of([&] { it.engine->save_checkpoint(folder.path("b")); }),
                                   HasSubstr("updates of \"rows\" on every rank"));
                       EXPECT_FALSE(std::filesystem::exists(folder.path("b")));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad
