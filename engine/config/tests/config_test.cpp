// What a configuration file means: the batch triangle, defaults, optimizers, precision, origins.
#include "engine/config/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>

namespace equigrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kAdamW = R"("optimizer": {"type": "AdamW"})";

std::string with(const std::string& keys) { return "{" + keys + ", " + kAdamW + "}"; }

std::vector<std::string> problems(const std::string& text, int world_size = 2) {
  try {
    parse_config(text, world_size);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

std::vector<std::string> problems_in_code(const EngineConfig& config, int world_size = 1) {
  try {
    validate(config, world_size);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

Setting setting(const EffectiveConfig& effective, const std::string& key) {
  for (const Setting& one : effective.settings)
    if (one.key == key) return one;
  ADD_FAILURE() << "no setting " << key;
  return {};
}

TEST(BatchTriangle, AnyTwoOfThreeKeysGiveTheThird) {
  for (const char* keys :
       {R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 4)",
        R"("train_batch_size": 24, "gradient_accumulation_steps": 3)",
        R"("train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3)",
        R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 4,
                              "gradient_accumulation_steps": 3)"}) {
    const EngineConfig config = parse_config(with(keys), 2);
    EXPECT_EQ(config.train_batch_size, 24) << keys;
    EXPECT_EQ(config.train_micro_batch_size_per_gpu, 4) << keys;
    EXPECT_EQ(config.gradient_accumulation_steps, 3) << keys;
  }
}

TEST(BatchTriangle, OneBatchKeyMeansOneAccumulationStep) {
  const EngineConfig by_train = parse_config(with(R"("train_batch_size": 24)"), 3);
  EXPECT_EQ(by_train.train_micro_batch_size_per_gpu, 8);
  EXPECT_EQ(by_train.gradient_accumulation_steps, 1);
  const EngineConfig by_micro = parse_config(with(R"("train_micro_batch_size_per_gpu": 8)"), 3);
  EXPECT_EQ(by_micro, by_train);
}

TEST(BatchTriangle, EveryConsistentTripleIsDerivedFromEveryPair) {
  for (std::int64_t micro = 1; micro <= 4; ++micro)
    for (std::int64_t steps = 1; steps <= 4; ++steps)
      for (int world = 1; world <= 4; ++world) {
        const std::string m = R"("train_micro_batch_size_per_gpu": )" + std::to_string(micro);
        const std::string k = R"("gradient_accumulation_steps": )" + std::to_string(steps);
        const std::string t = R"("train_batch_size": )" + std::to_string(micro * steps * world);
        const EngineConfig whole = parse_config(with(m + "," + k + "," + t), world);
        EXPECT_EQ(parse_config(with(m + "," + k), world), whole);
        EXPECT_EQ(parse_config(with(m + "," + t), world), whole);
        EXPECT_EQ(parse_config(with(k + "," + t), world), whole);
      }
}

TEST(BatchTriangle, AContradictionShowsItsArithmetic) {
  EXPECT_THAT(
      problems(with(R"("train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                       "gradient_accumulation_steps": 2)"),
               3),
      ElementsAre("train_batch_size: expected micro x accumulation x world = 4 x 2 x 3 = 24, got "
                  "32. Drop one of the three keys to have it derived, or start 4 ranks, with which "
                  "they agree."));
  EXPECT_THAT(problems(with(R"("train_batch_size": 12, "train_micro_batch_size_per_gpu": 4,
                       "gradient_accumulation_steps": 2)"),
                       3),
              ElementsAre(testing::EndsWith("Drop one of the three keys to have it derived.")));
  EXPECT_THAT(problems(with(R"("train_batch_size": 32, "train_micro_batch_size_per_gpu": 4)"), 3),
              ElementsAre(HasSubstr("a multiple of micro x world = 4 x 3 = 12, got 32")));
  EXPECT_THAT(problems(with(R"("train_batch_size": 7, "gradient_accumulation_steps": 2)"), 2),
              ElementsAre(HasSubstr("a multiple of accumulation x world = 2 x 2 = 4, got 7")));
}

TEST(BatchTriangle, NeitherBatchSizeIsAnError) {
  EXPECT_THAT(problems("{" + kAdamW + "}"), ElementsAre(HasSubstr("got neither")));
  EXPECT_THAT(problems(with(R"("gradient_accumulation_steps": 2)")),
              ElementsAre(HasSubstr("got neither")));
}

TEST(BatchTriangle, SizesBelowOneAndBeyondSixtyFourBitsAreErrors) {
  for (const char* size : {"0", "-8"})
    EXPECT_THAT(problems(with(std::string(R"("train_batch_size": )") + size)),
                ElementsAre(HasSubstr("train_batch_size: expected at least 1")));
  EXPECT_THAT(problems(with(R"("train_micro_batch_size_per_gpu": 4611686018427387904,
                               "gradient_accumulation_steps": 2)")),
              ElementsAre(HasSubstr("to fit in 64 bits")));
}

TEST(Defaults, AreDeepSpeedsExceptForClipping) {
  const EngineConfig config = parse_config(with(R"("train_batch_size": 1)"), 1);
  EXPECT_EQ(config, EngineConfig{});
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.weight_decay, 0.0);
  EXPECT_EQ(config.zero.stage, 0);
  EXPECT_EQ(config.zero.reduce_bucket_size, 500'000'000);
  EXPECT_EQ(config.gradient_clipping, 0.0);
  EXPECT_EQ(config.reduction, ReductionOrder::Pinned);
}

TEST(Reading, EveryHonouredKeyReachesItsField) {
  const EngineConfig config = parse_config(R"({
      // comments are allowed
      "train_batch_size": 2, "gradient_clipping": 0.5, "reduction": "native",
      "communication_timeout_s": 12.5, /* ours */
      "bf16": {"enabled": true, "check_grad_overflow": false},
      "data_types": {"grad_accum_dtype": "fp32", "param_dtype": "bf16"},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.25, "betas": [0.5, 0.75], "eps": 1e-6,
                                                "weight_decay": 0.125}},
      "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e2, "allgather_bucket_size": 11,
                            "stage3_prefetch_bucket_size": 12,
                            "stage3_param_persistence_threshold": 13,
                            "stage3_max_live_parameters": 14, "stage3_max_reuse_distance": 15,
                            "stage3_gather_16bit_weights_on_model_save": true,
                            "overlap_comm": false}})",
                                           2);
  EngineConfig expected;
  expected.train_batch_size = 2;
  expected.gradient_clipping = 0.5;
  expected.reduction = ReductionOrder::Native;
  expected.communication_timeout_s = 12.5;
  expected.precision.param = DataType::Bf16;
  expected.precision.check_grad_overflow = false;
  expected.optimizer = {OptimizerConfig::Kind::AdamW, 0.25, 0.125, 0.5, 0.75, 1e-6, 0, 0, false};
  expected.zero = {3, 500, 11, 12, 13, 14, 15, false, {}, {}, true};
  EXPECT_EQ(config, expected);
  for (const auto& [word, order] : {std::pair{"pinned", ReductionOrder::Pinned},
                                    {"native", ReductionOrder::Native},
                                    {"exact", ReductionOrder::Exact}}) {
    const auto text = with(R"("train_batch_size": 2, "reduction": ")" + std::string(word) + "\"");
    EXPECT_EQ(parse_config(text, 2).reduction, order);
    EXPECT_EQ(setting(explain_config(text, 2), "reduction").value, "\"" + std::string(word) + "\"");
  }
}

TEST(Optimizer, AdamIsAdamWUnlessItsModeIsOff) {
  const auto kind = [](const std::string& optimizer) {
    return parse_config(R"({"train_batch_size": 2, "optimizer": )" + optimizer + "}", 2)
        .optimizer.kind;
  };
  EXPECT_EQ(kind(R"({"type": "Adam"})"), OptimizerConfig::Kind::AdamW);
  EXPECT_EQ(kind(R"({"type": "adamw", "params": {"adam_w_mode": true}})"),
            OptimizerConfig::Kind::AdamW);
  EXPECT_EQ(kind(R"({"type": "ADAM", "params": {"adam_w_mode": false}})"),
            OptimizerConfig::Kind::Adam);
  EXPECT_EQ(kind(R"({"type": "SGD"})"), OptimizerConfig::Kind::Sgd);
}

TEST(Optimizer, SgdReadsItsOwnParameters) {
  const EngineConfig config = parse_config(
      R"({"train_batch_size": 2, "optimizer": {"type": "sgd", "params":
          {"lr": 0.5, "momentum": 0.75, "dampening": 0, "nesterov": true, "weight_decay": 0.25}}})",
      2);
  OptimizerConfig expected;
  expected.kind = OptimizerConfig::Kind::Sgd;
  expected.lr = 0.5;
  expected.momentum = 0.75;
  expected.nesterov = true;
  expected.weight_decay = 0.25;
  EXPECT_EQ(config.optimizer, expected);
}

TEST(Optimizer, TorchAdamBringsTorchsDefaultDecay) {
  const auto decay = [](const std::string& params) {
    return parse_config(R"({"train_batch_size": 2, "optimizer": {"type": "Adam", "params": )" +
                            params + "}}",
                        2)
        .optimizer.weight_decay;
  };
  EXPECT_EQ(decay(R"({"torch_adam": true})"), 0.01);
  EXPECT_EQ(decay(R"({"torch_adam": true, "weight_decay": 0.5})"), 0.5);
  EXPECT_EQ(decay(R"({"torch_adam": true, "adam_w_mode": false})"), 0.0);
}

TEST(Precision, GradientsAccumulateInTheParametersTypeByDefault) {
  const auto accumulate = [](const std::string& keys) {
    return parse_config(with(R"("train_batch_size": 2)" + keys), 2).precision.accumulate;
  };
  EXPECT_EQ(accumulate(""), DataType::Fp32);
  EXPECT_EQ(accumulate(R"(, "bf16": {"enabled": true})"), DataType::Bf16);
  EXPECT_EQ(accumulate(R"(, "bf16": {"enabled": true},
                            "data_types": {"grad_accum_dtype": "float32"})"),
            DataType::Fp32);
}

TEST(Effective, EveryValueHasItsOrigin) {
  const EffectiveConfig effective = explain_config(
      R"({"train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_print": 10,
          "optimizer": {"type": "Adam"}, "bf16": {"enabled": true}})",
      2);
  using Origin = Setting::Origin;
  EXPECT_EQ(setting(effective, "train_batch_size"),
            (Setting{.key = "train_batch_size", .value = "8", .origin = Origin::File, .note = ""}));
  EXPECT_EQ(setting(effective, "train_micro_batch_size_per_gpu"),
            (Setting{.key = "train_micro_batch_size_per_gpu",
                     .value = "2",
                     .origin = Origin::Derived,
                     .note = "train / (accumulation x world)"}));
  EXPECT_EQ(setting(effective, "zero_optimization.stage").origin, Origin::Default);
  EXPECT_EQ(setting(effective, "optimizer.type").value, "\"AdamW\"");
  EXPECT_EQ(setting(effective, "data_types.grad_accum_dtype").origin, Origin::Derived);
  EXPECT_EQ(setting(effective, "steps_per_print").origin, Origin::NoEffect);
  EXPECT_THAT(setting(effective, "gradient_clipping").note, HasSubstr("DeepSpeed"));
  const std::string described = describe(effective);
  EXPECT_THAT(described, HasSubstr("it only changes what DeepSpeed prints"));
  for (const char* line :
       {"train_batch_size +8 +file\n", "train_micro_batch_size_per_gpu +2 +derived +train",
        "zero_optimization.stage +0 +default\n", "steps_per_print +10 +no effect here +"})
    EXPECT_THAT(described, testing::ContainsRegex(line));
}

TEST(Loading, APathAndItsTextAgreeAndErrorsNameThePath) {
  const std::string path = testing::TempDir() + "equigrad_config_test.json";
  const std::string text = "\n  " + with(R"("train_batch_size": 2)");
  std::ofstream(path) << text;
  EXPECT_EQ(load_config(path, 2), load_config(text, 2));
  std::ofstream(path) << "{}";
  try {
    load_config(path, 2);
    ADD_FAILURE() << "expected an error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("[config " + path + "]"));
    EXPECT_THAT(error.what(), HasSubstr("(1 of 2 problems)"));
  }
  std::remove(path.c_str());
  EXPECT_THROW(load_config(path, 2), ConfigError);
  EXPECT_THROW(load_config(testing::TempDir(), 2), ConfigError);
  EXPECT_THROW(load_config("", 2), ConfigError);
}

TEST(Validate, FindsEveryProblemOfAConfigurationBuiltInCode) {
  EXPECT_THAT(problems_in_code(EngineConfig{}), ElementsAre());
  EXPECT_THAT(problems_in_code(EngineConfig{}, 2),
              ElementsAre(HasSubstr("= 1 x 1 x 2 = 2, got 1")));
  EXPECT_THAT(problems_in_code(EngineConfig{}, 0), ElementsAre(HasSubstr("at least 1 rank")));
  EngineConfig bad;
  bad.optimizer.lr = std::numeric_limits<double>::quiet_NaN();
  bad.optimizer.eps = 1e300;
  bad.optimizer.beta2 = 1.0;
  bad.optimizer.nesterov = true;
  bad.gradient_clipping = -1.0;
  bad.zero.stage = 4;
  bad.zero.reduce_bucket_size = 0;
  bad.precision.accumulate = DataType::Bf16;
  bad.communication_timeout_s = 1e-4;  // no whole millisecond
  EXPECT_THAT(
      problems_in_code(bad),
      ElementsAre(HasSubstr("params.lr: expected a number that fp32 can hold, got nan"),
                  HasSubstr("params.eps: expected a number that fp32 can hold"),
                  HasSubstr("params.betas: expected number 2"), HasSubstr("nesterov"),
                  HasSubstr("zero_optimization.stage: expected 0, 1, 2 or 3, got 4"),
                  HasSubstr("reduce_bucket_size: expected at least 1, got 0"),
                  HasSubstr("gradient_clipping: expected at least 0, got -1"),
                  HasSubstr("grad_accum_dtype: expected fp32"),
                  HasSubstr("communication_timeout_s: expected seconds from 0.001 to 1e9")));
}

TEST(InvalidUtf8, IsQuotedAsUtf8) {
  for (const std::string text : {"{\"a\": \"\xff\"}", "{\"a\xe2\x82\": 1}", "{\xff", "\xff{}"}) {
    try {
      explain_config(text, 1);
      ADD_FAILURE() << "expected an error of " << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("\xEF\xBF\xBD"));
      EXPECT_EQ(error.what(), valid_utf8(error.what()));
      ASSERT_EQ(error.problems().size(), 1);
      EXPECT_EQ(error.problems().front(), valid_utf8(error.problems().front()));
    }
  }
}

}  // namespace
}  // namespace equigrad
