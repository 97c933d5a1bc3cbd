// The optional sections: scheduler, progressive_layer_drop and flops_profiler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/testing/config_text.hpp"
#include "engine/config/config.hpp"

namespace equigrad {
namespace {

using conformance::problems;
using conformance::setting;
using conformance::with;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Kind = SchedulerConfig::Kind;
using Origin = Setting::Origin;

std::string scheduler(const std::string& type, const std::string& params,
                      const std::string& optimizer = "AdamW") {
  return with(R"("scheduler": {"type": ")" + type + R"(", "params": {)" + params + "}}", optimizer);
}

SchedulerConfig read(const std::string& text) { return parse_config(text, 2).scheduler.value(); }

const std::string kCycle = R"("cycle_min_lr": 0.5, "cycle_max_lr": 1)";

TEST(Scheduler, IsNothingUnlessItIsGiven) {
  for (const char* keys : {R"("scheduler": null)", R"("scheduler": {})",
                           R"("scheduler": {"type": null, "params": null})", R"("dump_state": 1)"})
    EXPECT_FALSE(parse_config(with(keys), 2).scheduler.has_value()) << keys;
}

TEST(Scheduler, DefaultsAreDeepSpeeds) {
  SchedulerConfig expected;
  EXPECT_EQ(read(with(R"("scheduler": {"type": "WarmupLR"})")), expected);
  EXPECT_EQ(expected.warmup_num_steps, 1000);
  EXPECT_TRUE(expected.warmup_max_lr.empty());
  expected.kind = Kind::WarmupDecayLr;
  expected.warmup_max_lr = {0.001};
  expected.total_num_steps = 1000;
  EXPECT_EQ(read(scheduler("warmupdecaylr", R"("total_num_steps": 1000)")), expected);
  expected = {};
  expected.kind = Kind::LrRangeTest;
  EXPECT_EQ(read(scheduler("LRRangeTest", "")), expected);
  expected = {};
  expected.kind = Kind::OneCycle;
  expected.cycle_min_lr = {0.5};
  expected.cycle_max_lr = {1.0};
  expected.cycle_second_step_size = 2000;
  expected.cycle_second_stair_count = 0;
  EXPECT_EQ(read(scheduler("OneCycle", kCycle)), expected);
}

TEST(Scheduler, EveryParameterReachesItsField) {
  SchedulerConfig expected;
  expected.kind = Kind::WarmupCosineLr;
  expected.warmup_min_ratio = 0.25;
  expected.cos_min_ratio = 0.125;
  expected.warmup_num_steps = 7;
  expected.warmup_type = SchedulerConfig::WarmupType::Linear;
  expected.total_num_steps = 70;
  expected.last_batch_iteration = 3;
  EXPECT_EQ(read(scheduler("WarmupCosineLR",
                           R"("warmup_min_ratio": 0.25, "cos_min_ratio": 0.125,
      "warmup_num_steps": 7, "warmup_type": "linear", "total_num_steps": 70,
      "last_batch_iteration": 3)")),
            expected);
  expected = {};
  expected.warmup_min_lr = {0.5, 0.25};
  expected.warmup_max_lr = {2};
  EXPECT_EQ(read(scheduler("WarmupLR", R"("warmup_min_lr": [0.5, 0.25], "warmup_max_lr": 2)")),
            expected);
  expected = {};
  expected.kind = Kind::OneCycle;
  expected.cycle_min_lr = {1.0, 2.0};
  expected.cycle_max_lr = {3.0};
  expected.decay_lr_rate = 0.5;
  expected.cycle_first_step_size = 4;
  expected.cycle_second_step_size = 5;
  expected.cycle_first_stair_count = 6;
  expected.cycle_second_stair_count = 7;
  expected.decay_step_size = 8;
  expected.cycle_min_mom = {0.25};
  expected.cycle_max_mom = {0.75, 0.5};
  expected.decay_mom_rate = 0.125;
  EXPECT_EQ(read(scheduler("OneCycle",
                           R"("cycle_min_lr": [1, 2], "cycle_max_lr": 3, "decay_lr_rate": 0.5,
      "cycle_first_step_size": 4, "cycle_second_step_size": 5, "cycle_first_stair_count": 6,
      "cycle_second_stair_count": 7, "decay_step_size": 8, "cycle_momentum": true,
      "cycle_min_mom": 0.25, "cycle_max_mom": [0.75, 0.5], "decay_mom_rate": 0.125)")),
            expected);
  expected = {};
  expected.kind = Kind::LrRangeTest;
  expected.lr_range_test_min_lr = {0.25};
  expected.lr_range_test_step_size = 9;
  expected.lr_range_test_step_rate = 3.0;
  expected.lr_range_test_staircase = true;
  EXPECT_EQ(read(scheduler("LRRangeTest",
                           R"("lr_range_test_min_lr": 0.25, "lr_range_test_step_size": 9,
      "lr_range_test_step_rate": 3, "lr_range_test_staircase": true)")),
            expected);
}

TEST(Scheduler, UnknownTypesAreRefusedWithASuggestion) {
  EXPECT_THAT(problems(scheduler("WarmpLR", "")),
              ElementsAre("scheduler.type: expected WarmupLR, WarmupDecayLR, WarmupCosineLR, "
                          "OneCycle or LRRangeTest, got \"WarmpLR\". Did you mean \"WarmupLR\"?"));
  EXPECT_THAT(problems(scheduler("Constant", "")), ElementsAre(HasSubstr("Choose one of them")));
  EXPECT_THAT(problems(scheduler("StepLR", "")),
              ElementsAre(HasSubstr("got \"StepLR\", a Python class of torch. Choose one of the")));
  EXPECT_THAT(problems(with(R"("scheduler": {"params": {"warmup_num_steps": 5}})")),
              ElementsAre(HasSubstr("scheduler.type: expected WarmupLR")));
  EXPECT_THAT(problems(with(R"("scheduler": {"type": 3, "params": {"cycle_min_lr": 1}})")),
              ElementsAre(HasSubstr("scheduler.type: expected a text")));
  EXPECT_THAT(problems(with(R"("scheduler": "WarmupLR")")),
              ElementsAre(HasSubstr("scheduler: expected an object")));
}

TEST(Scheduler, UnknownAndForeignParametersAreRefused) {
  EXPECT_THAT(problems(scheduler("WarmupLR", R"("warmup_steps": 5)")),
              ElementsAre(HasSubstr("scheduler.params.warmup_steps: expected a known key")));
  EXPECT_THAT(problems(scheduler("WarmupLR", R"("warmup_num_step": 5)")),
              ElementsAre(HasSubstr("Did you mean \"warmup_num_steps\"?")));
  EXPECT_THAT(problems(scheduler("WarmupLR", R"("total_num_steps": 5, "cycle_min_lr": 1)")),
              UnorderedElementsAre(
                  HasSubstr("scheduler.params.total_num_steps: expected a parameter of WarmupLR, "
                            "got \"total_num_steps\", which it does not have. Drop the key."),
                  HasSubstr("scheduler.params.cycle_min_lr: expected a parameter of WarmupLR")));
  EXPECT_THAT(problems(scheduler("OneCycle", kCycle + R"(, "warmup_type": "log")")),
              ElementsAre(HasSubstr("expected a parameter of OneCycle")));
}

TEST(Scheduler, MomentumIsCycledForAdamOnly) {
  const std::string key = "scheduler.params.cycle_momentum";
  EXPECT_TRUE(read(scheduler("OneCycle", kCycle)).cycle_momentum);
  EXPECT_EQ(setting(scheduler("OneCycle", kCycle, "SGD"), key),
            (Setting{.key = key,
                     .value = "false",
                     .origin = Origin::Derived,
                     .note = "SGD keeps its momentum, as in DeepSpeed"}));
  EXPECT_THAT(problems(scheduler("OneCycle", kCycle + R"(, "cycle_momentum": true)", "SGD")),
              ElementsAre(HasSubstr(key + ": expected false for SGD, got true.")));
}

TEST(Effective, SchedulerParametersHaveTheirOrigin) {
  const std::string params = "scheduler.params.";
  const std::string warmup = scheduler("WarmupLR", R"("warmup_num_steps": 5)");
  EXPECT_EQ(
      setting(warmup, "scheduler.type"),
      (Setting{
          .key = "scheduler.type", .value = "\"WarmupLR\"", .origin = Origin::File, .note = ""}));
  EXPECT_EQ(
      setting(warmup, params + "warmup_num_steps"),
      (Setting{
          .key = params + "warmup_num_steps", .value = "5", .origin = Origin::File, .note = ""}));
  EXPECT_EQ(setting(warmup, params + "warmup_type").value, "\"log\"");
  EXPECT_EQ(setting(warmup, params + "warmup_max_lr"),
            (Setting{.key = params + "warmup_max_lr",
                     .value = "null",
                     .origin = Origin::Derived,
                     .note = "each parameter group's own lr"}));
  EXPECT_EQ(setting(warmup, "optimizer.params.lr").note, "");
  const std::string cycle =
      scheduler("OneCycle", kCycle + R"(, "decay_lr_rate": 0.5, "cycle_momentum": false,
                                          "cycle_min_mom": 0.5)");
  EXPECT_EQ(setting(cycle, params + "cycle_second_step_size"),
            (Setting{.key = params + "cycle_second_step_size",
                     .value = "2000",
                     .origin = Origin::Derived,
                     .note = "as cycle_first_step_size"}));
  EXPECT_EQ(setting(cycle, params + "decay_lr_rate"), (Setting{.key = params + "decay_lr_rate",
                                                               .value = "0.5",
                                                               .origin = Origin::NoEffect,
                                                               .note = "decay_step_size is 0"}));
  EXPECT_EQ(setting(cycle, params + "cycle_min_mom").note, "cycle_momentum is false");
  EXPECT_EQ(setting(cycle, params + "cycle_min_mom").origin, Origin::NoEffect);
  EXPECT_EQ(setting(cycle, params + "cycle_max_mom").origin, Origin::Default);
  EXPECT_EQ(setting(cycle, "optimizer.params.lr").note, "OneCycle sets the learning rate");
  EXPECT_EQ(setting(with(R"("dump_state": false)"), "scheduler.type").note,
            "the learning rate is constant");
}

TEST(LayerDrop, IsReadCheckedAndListed) {
  EXPECT_EQ(parse_config(with(R"("dump_state": false)"), 2).progressive_layer_drop,
            (ProgressiveLayerDropConfig{false, 0.5, 0.001}));
  const std::string given =
      with(R"("progressive_layer_drop": {"enabled": true, "theta": 0.25, "gamma": 0.5})");
  EXPECT_EQ(parse_config(given, 2).progressive_layer_drop,
            (ProgressiveLayerDropConfig{true, 0.25, 0.5}));
  EXPECT_EQ(setting(given, "progressive_layer_drop.theta"),
            (Setting{.key = "progressive_layer_drop.theta",
                     .value = "0.25",
                     .origin = Origin::File,
                     .note = ""}));
  EXPECT_EQ(setting(with(R"("progressive_layer_drop": {"enabled": false, "theta": 0.25})"),
                    "progressive_layer_drop.theta"),
            (Setting{.key = "progressive_layer_drop.theta",
                     .value = "0.25",
                     .origin = Origin::NoEffect,
                     .note = "it is off"}));
  EXPECT_THAT(
      problems(with(R"("progressive_layer_drop": {"enabled": true, "theta": 1.5, "gamma": -1})")),
      ElementsAre(HasSubstr("progressive_layer_drop.theta: expected a probability from 0 to 1"),
                  HasSubstr("progressive_layer_drop.gamma: expected at least 0, got -1")));
}

TEST(CheckpointKeys, SayWhatHoldsHereOrAreRefused) {
  const auto of = [](const std::string& keys) { return with(R"("checkpoint": {)" + keys + "}"); };
  const std::string path = "checkpoint.tag_validation";
  for (const char* mode : {"\"Ignore\"", "\"WARN\"", "\"fail\"", "null"})
    EXPECT_THAT(problems(of(R"("tag_validation": )" + std::string(mode))), ElementsAre()) << mode;
  EXPECT_EQ(setting(of(R"("tag_validation": "WARN")"), path),
            (Setting{.key = path,
                     .value = "\"Warn\"",
                     .origin = Origin::NoEffect,
                     .note = "different tags are always an error"}));
  EXPECT_THAT(problems(of(R"("tag_validation": "foo")")),
              ElementsAre(HasSubstr(path + ": expected \"Ignore\", \"Warn\" or \"Fail\", got")));
  const std::string idle = of(R"("load_universal": true, "use_node_local_storage": false,
                                 "parallel_write": {"pipeline_stage": true})");
  EXPECT_THAT(problems(idle), ElementsAre());
  EXPECT_EQ(setting(idle, "checkpoint.load_universal").origin, Origin::NoEffect);
  EXPECT_THAT(problems(of(R"("use_node_local_storage": true, "writer": {"type": "fast"})")),
              ElementsAre(HasSubstr("Give all ranks one folder that they share."),
                          HasSubstr("There is one writer.")));
}

TEST(FlopsProfiler, IsReadCheckedAndListed) {
  EXPECT_EQ(parse_config(with(R"("flops_profiler": {"enabled": false})"), 2).flops_profiler,
            (FlopsProfilerConfig{.enabled = false,
                                 .recompute_fwd_factor = 0.0,
                                 .profile_step = 1,
                                 .module_depth = -1,
                                 .top_modules = 1,
                                 .detailed = true,
                                 .output_file = ""}));
  const std::string given = with(R"("flops_profiler": {"enabled": true, "profile_step": 5,
      "module_depth": 2, "top_modules": 3, "detailed": false, "output_file": "flops.txt",
      "recompute_fwd_factor": 1.0})");
  EXPECT_EQ(parse_config(given, 2).flops_profiler,
            (FlopsProfilerConfig{.enabled = true,
                                 .recompute_fwd_factor = 1.0,
                                 .profile_step = 5,
                                 .module_depth = 2,
                                 .top_modules = 3,
                                 .detailed = false,
                                 .output_file = "flops.txt"}));
  EXPECT_EQ(setting(given, "flops_profiler.output_file").value, "\"flops.txt\"");
  EXPECT_EQ(setting(with(R"("dump_state": false)"), "flops_profiler.output_file").value, "null");
  EXPECT_THAT(problems(with(R"("flops_profiler": {"profile_step": 0, "module_depth": -2,
                  "top_modules": 0, "recompute_fwd_factor": -1, "detailled": true})")),
              ElementsAre(HasSubstr("Did you mean \"detailed\"?"),
                          HasSubstr("flops_profiler.profile_step: expected at least 1, got 0"),
                          HasSubstr("flops_profiler.module_depth: expected at least -1, got -2"),
                          HasSubstr("flops_profiler.top_modules: expected at least 1, got 0"),
                          HasSubstr("flops_profiler.recompute_fwd_factor: expected at least 0")));
}

}  // namespace
}  // namespace equigrad
