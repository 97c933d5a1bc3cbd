// A run that is saved and loaded into a new engine is the run that was never interrupted.
#include "engine/core/checkpoints.hpp"

#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "conformance/testing/scratch_folder.hpp"
#include "conformance/testing/small_run.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/core/load_source.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::expect_equal;
using conformance::fp16_of;
using conformance::ScratchFolder;
using conformance::SmallOptions;
using conformance::SmallRun;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;

SmallOptions with_everything(int stage) {
  SchedulerConfig scheduler;
  scheduler.kind = SchedulerConfig::Kind::WarmupLr;
  scheduler.warmup_max_lr = {0.02};
  scheduler.warmup_num_steps = 7;
  return {.stage = stage,
          .accumulation = 2,
          .clipping = 0.5,
          .scheduler = scheduler,
          .layer_drop = {.enabled = true, .theta = 0.5, .gamma = 0.1}};
}

std::string norm_text(const Engine& engine) {  // NaN equals NaN
  const auto norm = engine.get_global_grad_norm();
  return norm ? fmt::format("{}", *norm) : "none";
}

void expect_same_engine(SmallRun& got, SmallRun& want, const std::string& what) {
  expect_equal(got.all(), want.all(), what);
  EXPECT_EQ(got.engine->get_lr(), want.engine->get_lr()) << what;
  EXPECT_EQ(got.engine->loss_scale(), want.engine->loss_scale()) << what;
  EXPECT_EQ(got.engine->layer_drop(), want.engine->layer_drop()) << what;
  EXPECT_EQ(norm_text(*got.engine), norm_text(*want.engine)) << what;
  EXPECT_EQ(got.engine->was_step_applied(), want.engine->was_step_applied()) << what;
  EXPECT_EQ(got.engine->counters().micro_steps, want.engine->counters().micro_steps) << what;
  EXPECT_EQ(got.engine->counters().global_steps, want.engine->counters().global_steps) << what;
  EXPECT_EQ(got.engine->counters().skipped_steps, want.engine->counters().skipped_steps) << what;
}

void resume_equals(RankContext& context, const SmallOptions& options, const std::string& folder) {
  SmallRun never(context, options), first(context, options);
  int64_t at = 0;
  for (; at < 6; ++at) {
    never.train(at);
    first.train(at);
  }
  first.engine->save_checkpoint(folder, "here");
  SmallRun second(context, options);
  second.train(77);
  if (options.accumulation == 2) second.train(78);
  const auto loaded = second.engine->load_checkpoint(folder);
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->path, folder + "/here");
  expect_same_engine(second, never, "after the load");
  for (; at < 12; ++at) {
    never.train(at);
    second.train(at);
    expect_same_engine(second, never, "micro-batch " + std::to_string(at));
  }
}

TEST(Checkpoints, AResumedRunIsTheOneThatWasNeverInterrupted) {
  for (const int world : {1, 2, 3}) {
    const ScratchFolder folder;
    at_every_stage(world, [&folder, world](RankContext& context, int stage) {
      const auto path = [&](const std::string& name) {
        return folder.path(name + std::to_string(10 * world + stage));
      };
      resume_equals(context, with_everything(stage), path("everything"));
      resume_equals(context, {.stage = stage, .momentum = true}, path("momentum"));
      resume_equals(context, {.stage = stage, .bf16 = true}, path("bf16"));
      resume_equals(context, {.stage = stage, .precision = fp16_of(12)}, path("fp16"));
      resume_equals(context, {.stage = stage, .reduction = ReductionOrder::Exact}, path("exact"));
    });
  }
}

TEST(Checkpoints, InExactOrderAnyStageGoesOn) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    const auto options = [](int of) {
      return SmallOptions{.stage = of, .reduction = ReductionOrder::Exact};
    };
    SmallRun never(context, options(stage)), first(context, options(stage));
    for (int64_t at = 0; at < 3; ++at) {
      never.train(at);
      first.train(at);
    }
    const auto path = folder.path("stage" + std::to_string(stage));
    first.engine->save_checkpoint(path);
    never.train(3);
    for (const int other : {0, 1, 2, 3}) {
      SmallRun second(context, options(other));
      ASSERT_TRUE(second.engine->load_checkpoint(path, "global_step3").has_value());
      second.train(3);
      for (const auto& parameter : second.parameters)
        if (parameter.name != "empty")
          EXPECT_THAT(
              second.engine->full_parameter(parameter.name),
              conformance::oracle::HasTheBitsOf(never.engine->full_parameter(parameter.name)))
              << parameter.name << " at stage " << other;
    }
  });
}

TEST(Checkpoints, WithoutALatestNothingIsLoaded) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage});
    it.train(0);
    const auto before = it.all();
    EXPECT_FALSE(it.engine->load_checkpoint(folder.path("nowhere")).has_value());
    expect_equal(it.all(), before, "nothing was loaded");
    EXPECT_THAT(error_of([&] { it.engine->load_checkpoint(folder.path("nowhere"), "a"); }),
                AllOf(HasSubstr("nowhere/a"), HasSubstr("no such folder")));
  });
}

TEST(Checkpoints, ClientStateAndLatestComeBack) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage});
    const auto path = folder.path("client" + std::to_string(stage));
    it.train(0);
    it.engine->save_checkpoint(path, "a", {.client_state = R"({"epoch": 3})"});
    it.train(1);
    it.engine->save_checkpoint(path, "b", {.client_state = "[1]", .save_latest = false});
    EXPECT_EQ(it.engine->load_checkpoint(path)->client_state, R"({"epoch":3})");
    EXPECT_EQ(it.engine->counters().global_steps, 1);
    EXPECT_EQ(it.engine->load_checkpoint(path, "b")->client_state, "[1]");
    EXPECT_EQ(it.engine->counters().global_steps, 2);
  });
}

TEST(Checkpoints, WhatIsRefusedChangesNothing) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage, .accumulation = 2});
    const auto path = folder.path("refused" + std::to_string(stage));
    it.train(0);
    const auto save = [&](const std::string& tag, const SaveOptions& options = {}) {
      return error_of([&] { it.engine->save_checkpoint(path, tag, options); });
    };
    EXPECT_THAT(save("a"), HasSubstr("between two accumulation windows"));
    it.train(1);
    EXPECT_THAT(save(".."), HasSubstr("plain name"));
    EXPECT_THAT(save("a/b"), HasSubstr("plain name"));
    EXPECT_THAT(save("a", {.client_state = "{"}), HasSubstr("JSON"));
    EXPECT_THAT(save("a" + std::to_string(context.rank())), HasSubstr("on every rank"));
    EXPECT_THAT(save("a", {.exclude_frozen_parameters = context.rank() == 1}),
                HasSubstr("same directory, tag and options"));
    EXPECT_FALSE(fs::exists(path));
    SaveOptions one_rank;
    if (context.rank() == 1) one_rank.client_state = "{";
    EXPECT_THAT(save("a", one_rank), HasSubstr("JSON"));
    it.engine->save_checkpoint(path, "a");
    const auto before = it.all();
    const auto load = [&](SmallRun& into) {
      return error_of([&] { into.engine->load_checkpoint(path); });
    };
    SmallRun sgd(context, {.stage = stage, .momentum = true});
    EXPECT_THAT(load(sgd), HasSubstr("optimizer of this kind"));
    SmallRun halves(context, {.stage = stage, .bf16 = true});
    EXPECT_THAT(load(halves), HasSubstr("computes in BF16"));
    if (context.rank() == 0) {
      for (const auto& entry : fs::directory_iterator(path + "/a")) {
        if (entry.path().extension() != ".safetensors") continue;
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(-1, std::ios::end);
        file.put('\x55');
        break;
      }
    }
    it.group->broadcast(at::zeros({1}), 0)->wait();
    EXPECT_THAT(load(it), HasSubstr("bytes that were saved"));
    expect_equal(it.all(), before, "what is refused changes nothing");
    it.train(2);
  });
}

// Whether the checkpoint has the parameter beside its master.
bool has_written_past(const std::string& folder, const std::string& parameter) {
  return checkpoint::SavedCheckpoint::open(folder, "here").has("parameter/" + parameter);
}

// Flips a byte of a tensor in its file; by one rank.
void damage(SmallRun& it, const std::string& folder, const std::string& tensor) {
  if (it.rank == 0) {
    const auto saved = checkpoint::SavedCheckpoint::open(folder, "here");
    const auto& piece = saved.entry(tensor).pieces.back();
    const auto& of = saved.manifest().files[piece.file];
    std::fstream file(saved.folder() / of.name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(of.header_bytes + piece.offset_bytes);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(of.header_bytes + piece.offset_bytes);
    file.put(byte);
  }
  it.group->broadcast(at::zeros({1}), 0)->wait();
}

// All of two parameters, of which one is rank 1's alone; or one element: the last, of its part.
void write_past(SmallRun& it, bool only_last) {
  const at::NoGradGuard no_grad;
  it["w1"][4][3] += 1;
  if (only_last) return;
  it["w1"].add_(0.125);
  it["b2"][2] += 1;
}

void goes_on_as_written(RankContext& context, const SmallOptions& options, bool only_last,
                        const std::string& folder) {
  SmallRun first(context, options), second(context, options);
  first.train(0);
  write_past(first, only_last);
  first.engine->save_checkpoint(folder, "here");
  EXPECT_TRUE(has_written_past(folder, "w1"));
  EXPECT_EQ(has_written_past(folder, "b2"), !only_last);
  EXPECT_FALSE(has_written_past(folder, "w2"));
  second.engine->load_checkpoint(folder);
  expect_same_engine(second, first, "after the load");
  EXPECT_THAT(second["w1"], conformance::oracle::HasTheBitsOf(first["w1"]));
  for (const int at : {1, 2}) {
    first.train(at);
    second.train(at);
    expect_same_engine(second, first, "step " + std::to_string(at));
  }
  SmallRun sharded(context, {.stage = 3, .bf16 = options.bf16});
  const auto before = sharded.all(), then = second.all();
  EXPECT_THAT(error_of([&] { sharded.engine->load_checkpoint(folder); }),
              AllOf(HasSubstr("\"w1\""), HasSubstr("past the engine")));
  expect_equal(sharded.all(), before, "what is refused changes nothing");
  damage(second, folder, "parameter/w1");
  for (const bool module_only : {false, true})
    EXPECT_THAT(
        error_of([&] { second.engine->load_checkpoint(folder, "", {.module_only = module_only}); }),
        HasSubstr("bytes that were saved"));
  expect_equal(second.all(), then, "what is refused changes nothing");
}

// What a user writes into a parameter, and not into its master, counts until the next update: in a
// run that was interrupted too.
TEST(Checkpoints, ParametersThatWereWrittenPastTheEngineComeBack) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    for (const bool bf16 : {false, true}) {
      const SmallOptions options{.stage = stage, .bf16 = bf16};
      const auto path = folder.path(std::to_string(stage) + (bf16 ? "bf16" : "fp32"));
      SmallRun usual(context, options);
      usual.train(0);
      usual.engine->save_checkpoint(path + "/usual", "here");
      for (const auto* name : {"w1", "b1", "w2", "b2", "unused"})
        EXPECT_FALSE(has_written_past(path + "/usual", name)) << name;
      if (stage == 3) continue;  // no parameter is whole outside of gather()
      for (const bool only_last : {false, true})
        goes_on_as_written(context, options, only_last, path + (only_last ? "/last" : "/all"));
    }
  });
}

TEST(Checkpoints, ATiedParameterThatWasWrittenPastComesBackUnderItsOtherName) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    if (stage == 3) return;
    const auto make = [&](const std::vector<NamedParameter>& parameters) {
      return initialize({ParameterGroup{parameters, {}, {}}},
                        conformance::config_of({.stage = stage}, context.world_size()),
                        context.group());
    };
    const auto tied = at::sin(at::arange(6)).requires_grad_();
    const auto engine = make({{"a", tied}, {"b", tied}});
    tied.data().add_(0.5);
    const auto path = folder.path("stage" + std::to_string(stage));
    engine->save_checkpoint(path, "here");
    const auto alone = at::zeros({6}).requires_grad_();
    const auto other = make({{"b", alone}});
    other->load_checkpoint(path, "here", {.module_strict = false});
    EXPECT_THAT(alone.detach(), conformance::oracle::HasTheBitsOf(tied.detach()));
  });
}

TEST(Checkpoints, RanksThatReadTwoFoldersAreTold) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage});
    const auto path = folder.path("stage" + std::to_string(stage));
    for (const int at : {0, 1}) {
      it.train(at);
      it.engine->save_checkpoint(path + "/" + std::to_string(at), "a");
    }
    const auto before = it.all();
    EXPECT_THAT(error_of([&] {
                  it.engine->load_checkpoint(path + "/" + std::to_string(context.rank()), "a");
                }),
                HasSubstr("the same checkpoint and options on every rank"));
    expect_equal(it.all(), before, "what is refused changes nothing");
  });
}

TEST(Checkpoints, WithoutStatesUpdatesAreCountedFromZero) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage}), fresh(context, {.stage = stage});
    const auto path = folder.path("stage" + std::to_string(stage));
    it.train(0);
    it.train(1);
    it.engine->save_checkpoint(path);
    for (SmallRun* one : {&it, &fresh}) {
      one->engine->load_checkpoint(path, "", {.optimizer_states = false});
      one->train(2);
    }
    expect_equal(it.all(), fresh.all(), "an engine that had trained, and one that had not");
  });
}

TEST(Checkpoints, WithoutTheScheduleItsRatesAndBetasStay) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    SchedulerConfig scheduler;
    scheduler.kind = SchedulerConfig::Kind::OneCycle;
    scheduler.cycle_min_lr = {0.01};
    scheduler.cycle_max_lr = {0.05};
    scheduler.cycle_first_step_size = 5;
    SmallRun it(context, {.stage = stage, .scheduler = scheduler});
    const auto path = folder.path("stage" + std::to_string(stage));
    it.train(0);
    it.engine->save_checkpoint(path);
    it.train(1);
    it.train(2);
    const auto want = it.engine->hyper_parameters();
    it.engine->load_checkpoint(path, "", {.lr_scheduler_states = false});
    EXPECT_EQ(it.engine->hyper_parameters(), want);
    it.engine->load_checkpoint(path);
    EXPECT_NE(it.engine->hyper_parameters().front().beta1, want.front().beta1);
  });
}

TEST(Checkpoints, AnAsynchronousSaveIsOfTheMomentInWhichItBegan) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage});
    const auto path = folder.path("beside" + std::to_string(stage));
    it.train(0);
    const auto want = it.all();
    it.engine->save_checkpoint(path, "a", {.asynchronous = true});
    it.train(1);
    it.train(2);
    EXPECT_FALSE(fs::exists(path + "/a/manifest.json"));  // it does not count yet
    it.engine->finish_checkpoint();
    it.engine->finish_checkpoint();  // nothing
    EXPECT_TRUE(fs::exists(path + "/a/manifest.json"));
    it.engine->load_checkpoint(path);
    expect_equal(it.all(), want, "the load");
    it.engine->save_checkpoint(path, "b", {.asynchronous = true});
    it.engine->save_checkpoint(path, "c", {.asynchronous = true});
    EXPECT_TRUE(fs::exists(path + "/b/manifest.json"));  // the next one ends it
    it.engine.reset();
    comm::exchange(*it.group, at::zeros({1}, at::kLong));  // on every rank
    EXPECT_FALSE(fs::exists(path + "/c/manifest.json"));
    for (const auto& entry : fs::directory_iterator(path + "/c"))
      ADD_FAILURE() << entry.path() << " is left of a save that was given up";
  });
}

// Refused before anything is begun: the next save finds nothing of it.
TEST(Checkpoints, ABufferOfATypeThatFilesLackIsRefusedAndTheNextSaveIsWell) {
  const ScratchFolder folder;
  at_every_stage(2, [&folder](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage});
    const auto path = folder.path("complex" + std::to_string(stage));
    SaveOptions options;  // of one rank alone
    if (context.rank() == 1) options.buffers = {{"c", at::zeros({2}, at::kComplexFloat)}};
    for (const bool beside : {false, true}) {
      options.asynchronous = beside;
      EXPECT_THAT(error_of([&] { it.engine->save_checkpoint(path, "a", options); }),
                  HasSubstr("a type that safetensors has"));
      EXPECT_FALSE(fs::exists(path));
    }
    it.train(0);
    it.engine->save_checkpoint(path, "a");
    EXPECT_TRUE(it.engine->load_checkpoint(path).has_value());
  });
}

TEST(Checkpoints, RandomNumbersGoOn) {
  const ScratchFolder folder;
  EXPECT_EQ(on_ranks(2,
                     [&folder](RankContext& context) {
                       SmallRun it(context, {.stage = 2});
                       at::manual_seed(static_cast<uint64_t>(11 + context.rank()));
                       it.engine->save_checkpoint(folder.path("rng"), "a");
                       const auto want = at::rand({5});
                       at::rand({3});
                       it.engine->load_checkpoint(folder.path("rng"), "a");
                       EXPECT_THAT(at::rand({5}), conformance::oracle::HasTheBitsOf(want));
                     }),
            "");
}

TEST(Checkpoints, BuffersAreThoseOfTheirRank) {
  const ScratchFolder folder;
  EXPECT_EQ(
      on_ranks(2,
               [&folder](RankContext& context) {
                 SmallRun it(context, {.stage = 1});
                 const auto mean = at::full({3}, 1.5 + context.rank());
                 const auto count = at::full({}, 7 + context.rank(), at::kLong);
                 const std::vector<NamedTensor> buffers{{"bn.mean", mean}, {"bn.count", count}};
                 it.engine->save_checkpoint(folder.path("b"), "a", {.buffers = buffers});
                 mean.zero_();
                 count.zero_();
                 it.engine->load_checkpoint(folder.path("b"), "a", {.buffers = buffers});
                 EXPECT_EQ(mean[0].item<double>(), 1.5 + context.rank());
                 EXPECT_EQ(count.item<int64_t>(), 7 + context.rank());
                 EXPECT_THAT(error_of([&] { it.engine->load_checkpoint(folder.path("b"), "a"); }),
                             HasSubstr("bn."));
               }),
      "");
}

}  // namespace
}  // namespace equigrad
