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
#include "conformance/testing/saved_folder.hpp"
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

// Whole numbers; rounded ones; of random numbers, which each data rank draws.
enum class Gradients { Whole, Rounded, Drawn };

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
      sum = sum +
            (kind == Gradients::Whole ? product : product + product * value * some(batch)).sum();
    }
    return sum;
  }
  Mesh mesh;
  std::vector<Whole> all;
  at::Tensor seen;
  at::Tensor some(int64_t batch) const {
    return kind == Gradients::Drawn ? at::rand({1})
                                    : at::full({1}, 0.1 * static_cast<double>(batch));
  }
  Gradients kind = Gradients::Drawn;
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

  Trained(const Mesh& mesh, const Trial& run, int64_t seed, Gradients kind)
      : network(mesh, seed),
        engine(initialize(network, run.text(), mesh)),
        place(comm::place_of(mesh.world()->rank(), run.sizes)) {
    network.kind = kind;
    at::manual_seed(static_cast<uint64_t>(100 * seed + 10 * place.data + place.sequence));
  }
  at::ScalarType dtype() const { return network.named_parameters()["shared"].scalar_type(); }
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
                    Gradients kind) {
  const auto mesh = mesh_at(context.rank(), run.sizes, folder + "-first");
  Trained it(mesh, run, 1, kind);
  for (int64_t step = 0; step < 3; ++step) it.train(step);
  it.engine->save_checkpoint(folder, "here");
  expect_whole_masters(it, folder);
  for (int64_t step = 3; step < 5; ++step) it.train(step);
  it.engine->save_checkpoint(folder, "never", {.save_latest = false});
}

// On another mesh nobody's random numbers are taken, and rank 0's buffers.
void expect_those_of_rank_0(Trained& it, const std::string& folder, const at::Tensor& drawn) {
  EXPECT_THAT(at::globalContext().defaultGenerator(at::kCPU).get_state(), HasTheBitsOf(drawn));
  const auto saved = SavedCheckpoint::open(folder, "here");
  const auto first = at::empty_like(it.network.seen);
  saved.read("rank0/buffer/seen", 0, first.numel(), first.mutable_data_ptr());
  EXPECT_THAT(it.network.seen, HasTheBitsOf(first));
}

void resume(RankContext& context, const Trial& run, const std::string& folder, Gradients kind) {
  const auto mesh = mesh_at(context.rank(), run.sizes, folder + "-second");
  Trained it(mesh, run, 50, kind);
  it.train(77);
  const auto drawn = at::globalContext().defaultGenerator(at::kCPU).get_state();
  ASSERT_TRUE(it.engine->load_checkpoint(folder).has_value());
  if (kind != Gradients::Drawn) expect_those_of_rank_0(it, folder, drawn);
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
                           save_and_go_on(context, trial, path, Gradients::Drawn);
                           resume(context, trial, path, Gradients::Drawn);
                         }),
                "");
      expect_equal_tags(path, "here", "again", true);
      expect_equal_tags(path, "never", "resumed", true);
    }
  }
}

// Into parts and wholes alike, as all ranks that have them would.
void write_past(Trained& it) {
  const at::NoGradGuard no_grad;
  for (const auto& one : it.network.all)
    if (one.is_trained && one.name != "wide")
      it.network.named_parameters()[one.name].add_(
          it.network.part(one, whole_numbers(one.shape, 40) * 0.25).to(it.dtype()));
}

void save_what_was_written(RankContext& context, const Trial& run, const std::string& folder) {
  const auto mesh = mesh_at(context.rank(), run.sizes, folder + "-first");
  Trained it(mesh, run, 1, Gradients::Drawn);
  it.train(0);
  write_past(it);
  it.engine->save_checkpoint(folder, "here");
  const auto saved = SavedCheckpoint::open(folder, "here");
  EXPECT_FALSE(saved.has("parameter/wide"));
  for (const auto* name : {"packed", "bias", "rows", "deep", "shared"}) {
    const auto want = it.engine->full_parameter(name);
    auto got = at::empty(want.sizes(), want.scalar_type());
    saved.read(std::string("parameter/") + name, 0, got.numel(), got.mutable_data_ptr());
    EXPECT_THAT(got, HasTheBitsOf(want)) << name;
  }
  it.train(1);
  it.engine->save_checkpoint(folder, "never", {.save_latest = false});
}

TEST(MeshCheckpoint, WhatWasWrittenPastTheEngineComesBackInItsParts) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  for (const std::string mode : {"", R"(, "bf16": {"enabled": true})"}) {
    for (const auto& trial :
         {Trial{{.tensor = 2}, 0, mode}, Trial{{.data = 2, .tensor = 2}, 1, mode},
          Trial{{.sequence = 2, .tensor = 2}, 2, mode}}) {
      SCOPED_TRACE(trial.name());
      const auto path = folder.path(fmt::format("{}-{}", trial.stage, mode.empty()));
      EXPECT_EQ(on_ranks(trial.sizes.world_size(),
                         [&](RankContext& context) {
                           save_what_was_written(context, trial, path);
                           const auto mesh = mesh_at(context.rank(), trial.sizes, path + "-second");
                           Trained it(mesh, trial, 50, Gradients::Drawn);
                           ASSERT_TRUE(it.engine->load_checkpoint(path).has_value());
                           it.engine->save_checkpoint(path, "again", {.save_latest = false});
                           it.train(1);
                           it.engine->save_checkpoint(path, "resumed", {.save_latest = false});
                         }),
                "");
      expect_equal_tags(path, "here", "again", true);
      expect_equal_tags(path, "never", "resumed", true);
    }
  }
}

// Saved on the first, resumed on the second, with "reduction": "exact".
void expect_goes_on(const ScratchFolder& folder, const Trial& from, const Trial& to,
                    Gradients kind) {
  const std::string exact = R"(, "reduction": "exact")";
  const Trial first{from.sizes, from.stage, exact}, second{to.sizes, to.stage, exact};
  SCOPED_TRACE(first.name() + " to " + second.name());
  const auto path = folder.path(fmt::format("{}-{}", first.name(), second.name()));
  EXPECT_EQ(on_ranks(first.sizes.world_size(),
                     [&](RankContext& context) { save_and_go_on(context, first, path, kind); }),
            "");
  EXPECT_EQ(on_ranks(second.sizes.world_size(),
                     [&](RankContext& context) { resume(context, second, path, kind); }),
            "");
  expect_equal_tags(path, "here", "again", false);
  expect_equal_tags(path, "never", "resumed", false);
}

TEST(MeshCheckpoint, OnAnotherMeshItGoesOnWhereSumsAreExact) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  const std::vector<std::pair<Trial, Trial>> pairs{
      {{{.tensor = 2}, 0}, {{.data = 2}, 2}},
      {{{.tensor = 4}, 1}, {{.data = 2, .tensor = 2}, 2}},
      {{{.sequence = 2}, 3}, {{}, 0}},
      {{{.sequence = 2, .tensor = 2}, 2}, {{.data = 4}, 3}},
      {{{.data = 2, .tensor = 2}, 1}, {{}, 0}}};
  for (const auto& [one, other] : pairs) {
    expect_goes_on(folder, one, other, Gradients::Whole);
    expect_goes_on(folder, other, one, Gradients::Whole);
  }
}

TEST(MeshCheckpoint, OnAnotherNumberOfDataRanksItGoesOn) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  const Trial one{{.tensor = 2}, 2}, two{{.data = 2, .tensor = 2}, 1};
  expect_goes_on(folder, one, two, Gradients::Rounded);
  expect_goes_on(folder, two, one, Gradients::Rounded);
}

void damage_rows_of_part_1(const std::string& folder) {
  const auto saved = SavedCheckpoint::open(folder, "here");
  const auto& piece = saved.entry("master/rows").pieces.back();
  ASSERT_EQ(piece.part, 1);
  ASSERT_GT(piece.begin, 0);  // behind what its first run reads
  const auto& file = saved.manifest().files[piece.file];
  conformance::damage({saved.folder() / file.name, file.header_bytes + piece.offset_bytes});
}

TEST(MeshCheckpoint, WhatCannotGoOnIsAnErrorByName) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  const auto expect_errors = [&](RankContext& context) {
    const Trial trial{{.data = 2, .tensor = 2}, 0};
    const auto mesh = mesh_at(context.rank(), trial.sizes, folder.path("ranks"));
    const auto saved = folder.path("a"), other_folder = folder.path("b");
    Trained it(mesh, trial, 1, Gradients::Whole);
    it.train(0);
    it.engine->save_checkpoint(saved, "here");
    Network other(mesh, 1, {12});
    const auto engine = initialize(other, trial.text(), mesh);
    EXPECT_THAT(
        error_of([&] { engine->load_checkpoint(saved); }),
        AllOf(HasSubstr("\"packed\" packed as [12] along dimension 0"), HasSubstr("got [4, 8]")));
    // A bit of what tensor rank 1 alone has to read is an error on all, which changes nothing.
    mesh.world()->broadcast(at::zeros({1}), 0)->wait();
    if (context.rank() == 0) damage_rows_of_part_1(saved);
    mesh.world()->broadcast(at::zeros({1}), 0)->wait();
    it.train(1);
    const auto before = it.engine->full_parameter("rows");
    EXPECT_THAT(error_of([&] { it.engine->load_checkpoint(saved); }),
                HasSubstr("bytes that were saved of \"master/rows\""));
    EXPECT_THAT(it.engine->full_parameter("rows"), HasTheBitsOf(before));
    // On one tensor rank this part of it has no gradient.
    it.train(2, it.place.tensor == 1 ? "rows" : "");
    EXPECT_THAT(error_of([&] { it.engine->save_checkpoint(other_folder); }),
                HasSubstr("updates of \"rows\" on every rank"));
    EXPECT_FALSE(std::filesystem::exists(other_folder));
  };
  EXPECT_EQ(on_ranks(4, expect_errors), "");
}

}  // namespace
}  // namespace equigrad
