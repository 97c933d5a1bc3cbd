// Values of the scheduler that are refused, each with the path of its key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "conformance/testing/config_text.hpp"
#include "engine/config/config.hpp"

namespace equigrad {
namespace {

using conformance::problems;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

std::string scheduler(const std::string& type, const std::string& params) {
  return R"({"train_batch_size": 2, "optimizer": {"type": "AdamW"}, "scheduler": {"type": ")" +
         type + R"(", "params": {)" + params + "}}}";
}

const std::string kCycle = R"("cycle_min_lr": 0.5, "cycle_max_lr": 1)";

TEST(Scheduler, WrongValuesNameTheirPath) {
  const auto of = [](const char* type, const std::string& params) {
    return problems(scheduler(type, params));
  };
  EXPECT_THAT(of("WarmupLR", R"("warmup_num_steps": 0)"),
              ElementsAre(HasSubstr("scheduler.params.warmup_num_steps: expected at least 1")));
  EXPECT_THAT(of("WarmupLR", R"("warmup_num_steps": 1.5)"),
              ElementsAre(HasSubstr("expected a whole number, got 1.5")));
  EXPECT_THAT(of("WarmupLR", R"("warmup_num_steps": 9007199254740993)"),
              ElementsAre(HasSubstr("expected at most 2^53")));
  EXPECT_THAT(of("WarmupLR", R"("warmup_type": "liner")"),
              ElementsAre(HasSubstr("got \"liner\". Did you mean \"linear\"?")));
  EXPECT_THAT(of("WarmupLR", R"("warmup_min_lr": "auto")"),
              ElementsAre(HasSubstr("a Hugging Face placeholder")));
  EXPECT_THAT(of("WarmupLR", R"("warmup_min_lr": -1)"), ElementsAre(HasSubstr("at least 0")));
  EXPECT_THAT(of("WarmupLR", R"("warmup_max_lr": [1, 1e300])"),
              ElementsAre(HasSubstr("warmup_max_lr: expected a number that fp32 can hold")));
  for (const char* list : {"[]", "[1,true]", "{}", "true", "\"1\""})
    EXPECT_THAT(of("WarmupLR", R"("warmup_min_lr": )" + std::string(list)),
                ElementsAre(HasSubstr("one for each parameter group, got " + std::string(list))));
  EXPECT_THAT(of("WarmupLR", R"("last_batch_iteration": -2)"),
              ElementsAre(HasSubstr("last_batch_iteration: expected at least -1, got -2")));
  EXPECT_THAT(of("WarmupCosineLR", R"("total_num_steps": 1000, "warmup_min_ratio": -0.5,
                                      "cos_min_ratio": -0.5)"),
              ElementsAre(HasSubstr("warmup_min_ratio: expected at least 0, got -0.5"),
                          HasSubstr("cos_min_ratio: expected at least 0, got -0.5")));
  EXPECT_THAT(of("LRRangeTest", R"("lr_range_test_min_lr": -1, "lr_range_test_step_size": 0,
                                   "lr_range_test_step_rate": -1, "lr_range_test_staircase": 1)"),
              UnorderedElementsAre(HasSubstr("staircase: expected true or false"),
                                   HasSubstr("min_lr: expected at least 0"),
                                   HasSubstr("step_size: expected at least 1"),
                                   HasSubstr("step_rate: expected at least 0")));
}

TEST(Scheduler, WhatMustBeGivenIsAskedForOnce) {
  EXPECT_THAT(problems(scheduler("WarmupDecayLR", "")),
              ElementsAre("scheduler.params.total_num_steps: expected the number of updates of the "
                          "whole training, got none. Add the key."));
  EXPECT_THAT(problems(scheduler("WarmupCosineLR", R"("total_num_steps": "9")")),
              ElementsAre(HasSubstr("total_num_steps: expected a whole number")));
  EXPECT_THAT(problems(scheduler("WarmupDecayLR", R"("total_num_steps": 999)")),
              ElementsAre("scheduler.params.total_num_steps: expected at least warmup_num_steps = "
                          "1000, got 999. Raise it, or lower them."));
  EXPECT_THAT(problems(scheduler("OneCycle", "")),
              ElementsAre(HasSubstr("cycle_min_lr: expected a number, or a list with one for each "
                                    "parameter group, got none. Add the key."),
                          HasSubstr("cycle_max_lr: expected a number")));
  EXPECT_THAT(problems(scheduler("OneCycle", R"("cycle_min_lr": "1", "cycle_max_lr": 1)")),
              ElementsAre(HasSubstr("cycle_min_lr: expected a number")));
}

TEST(Scheduler, SizesAndMomentaOfOneCycleAreChecked) {
  EXPECT_THAT(problems(scheduler("OneCycle", kCycle + R"(, "cycle_first_step_size": 0,
                  "cycle_second_step_size": -1, "cycle_first_stair_count": -1,
                  "cycle_second_stair_count": -2, "decay_step_size": -1, "decay_lr_rate": -1,
                  "decay_mom_rate": -1, "cycle_min_mom": -0.5, "cycle_max_mom": [0.5, 1])")),
              ElementsAre(HasSubstr("cycle_first_step_size: expected at least 1, got 0"),
                          HasSubstr("cycle_second_step_size: expected at least 0, got -1"),
                          HasSubstr("cycle_first_stair_count: expected at least 0, got -1"),
                          HasSubstr("cycle_second_stair_count: expected at least 0, got -2"),
                          HasSubstr("decay_step_size: expected at least 0"),
                          HasSubstr("decay_lr_rate: expected at least 0"),
                          HasSubstr("decay_mom_rate: expected at least 0"),
                          HasSubstr("cycle_min_mom: expected at least 0, got -0.5"),
                          HasSubstr("cycle_max_mom: expected it below 1, got 1.0")));
}

TEST(Scheduler, OfAConfigurationBuiltInCodeIsChecked) {
  EngineConfig config;
  config.scheduler = SchedulerConfig{};
  validate(config, 1);
  config.scheduler->warmup_min_lr = {std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THROW(validate(config, 1), ConfigError);
  config.scheduler->warmup_min_lr = {};
  EXPECT_THROW(validate(config, 1), ConfigError);
}

}  // namespace
}  // namespace equigrad
