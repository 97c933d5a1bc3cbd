// What a configuration file may not say: unknown, unsupported, mistyped or doubled keys.
#include "engine/config/schema.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "conformance/testing/config_text.hpp"
#include "engine/config/config.hpp"

namespace equigrad {
namespace {

using conformance::problems;
using conformance::with;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::vector<std::string> problems_of_params(const std::string& type, const std::string& params) {
  return problems(R"({"train_batch_size": 2, "optimizer": {"type": ")" + type +
                  R"(", "params": {)" + params + "}}}");
}

TEST(Types, WholeNumbersMayBeWrittenAsFloats) {
  const Json root = Json::parse(R"({"a": 5e8, "b": 9007199254740994.0, "c": 18446744073709551615,
                                    "d": -3, "e": 9223372036854775807})");
  ConfigReader reader(root);
  const auto read = [&](const char* path) {
    return read_value(key(path, of_type(ValueType::Whole), "7", "A key of this test."), reader);
  };
  EXPECT_EQ(read("a"), 500'000'000);
  EXPECT_EQ(read("d"), -3);
  EXPECT_EQ(read("e"), 9223372036854775807);
  EXPECT_EQ(read("absent"), 7);
  EXPECT_THAT(reader.problems(), IsEmpty());
  for (const char* path : {"b", "c", "b"}) EXPECT_EQ(read(path), 7);
  EXPECT_THAT(reader.problems(), ElementsAre(StartsWith("b: "), StartsWith("c: ")));
}

TEST(Unknown, KeysAreErrorsAtEveryLevelWithASuggestion) {
  EXPECT_THAT(problems(with(R"("gradient_cliping": 1)")),
              ElementsAre("gradient_cliping: expected a known key, got \"gradient_cliping\". Did "
                          "you mean \"gradient_clipping\"?"));
  EXPECT_THAT(problems(with(R"("zero_optimization": {"reduce_bucket": 1})")),
              ElementsAre(AllOf(StartsWith("zero_optimization.reduce_bucket: "),
                                HasSubstr("Did you mean \"reduce_bucket_size\"?"))));
  EXPECT_THAT(problems_of_params("AdamW", R"("learning_rate": 1)"),
              ElementsAre(StartsWith("optimizer.params.learning_rate: expected a known key")));
  EXPECT_THAT(problems(with(R"("stage": 2)")),
              ElementsAre(HasSubstr("It belongs at \"zero_optimization.stage\"")));
  EXPECT_THAT(problems(with(R"("bf16.enabled": true)")),
              ElementsAre(HasSubstr("It belongs at \"bf16.enabled\"")));
}

TEST(Unsupported, FeaturesAreRefusedByName) {
  for (
      const char* keys :
      {R"("fp16": {"enabled": true, "auto_cast": true})",
       R"("amp": {"enabled": true, "opt_level": "O3"})",
       R"("amp": {"enabled": true, "min_loss_scale": 1})",
       R"("amp": {"enabled": true, "max_loss_scale": 65536})",
       R"("amp": {"enabled": true, "num_losses": 2})",
       R"("amp": {"enabled": true, "cast_model_type": "float16"})",
       R"("amp": {"enabled": true, "cast_model_outputs": "float32"})",
       R"("amp": {"enabled": true, "cast_batchnorm": "float32"})",
       R"("tensor_parallel": {"keep_module_on_host": true})", R"("compile": {"enabled": true})",
       R"("compiled_autograd": true)", R"("eigenvalue": {"enabled": true})",
       R"("sparse_gradients": true)",
       R"("zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme"}})",
       R"("zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.5}})",
       R"("zero_optimization": {"stage": 1,
            "offload_optimizer": {"device": "cpu", "super_offload": true}})",
       R"("zero_optimization": {"offload_param": {"device": "nvme"}})",
       R"("zero_optimization": {"zero_quantized_weights": true})",
       R"("activation_checkpointing": {"partition_activations": true})"})
    EXPECT_THAT(problems(with(keys)), ElementsAre(HasSubstr("not supported by this version")))
        << keys;
}

TEST(Unsupported, FeaturesThatAreOffAreAccepted) {
  EXPECT_THAT(problems(with(R"("fp16": {"enabled": false, "loss_scale": 1000, "auto_cast": true},
      "amp": {"opt_level": "O2", "num_losses": 3, "keep_batchnorm_fp32": true}, "scheduler": null,
      "torch_autocast": {"enabled": false, "dtype": "float32"}, "bf16": {},
      "tensor_parallel": {}, "flops_profiler": {"enabled": false}, "sparse_gradients": false,
      "communication_data_type": null, "prescale_gradients": false,
      "gradient_predivide_factor": 1.0, "gradient_allreduce_op": "MEAN",
      "activation_checkpointing": {"partition_activations": false, "number_checkpoints": null},
      "zero_optimization": {"overlap_comm": true, "offload_optimizer": {"device": "none",
                                "ratio": 0.5, "super_offload": true},
                            "contiguous_gradients": true, "zero_quantized_weights": false})")),
              ElementsAre());
}

TEST(Unsupported, CompilationSaysWhyAndEigenvaluesWhatToCall) {
  for (const char* key : {"compile", "compiled_autograd"})
    EXPECT_THAT(problems(with("\"" + std::string(key) + R"(": {"enabled": true})")),
                ElementsAre(AllOf(StartsWith(std::string(key) + ": "),
                                  HasSubstr("the C++ autograd graph needs no compilation"))));
  EXPECT_THAT(problems(with(R"("eigenvalue": {"enabled": true, "max_iter": 10})")),
              ElementsAre(HasSubstr("Call equigrad::profile::eigenvalue.")));
  EXPECT_THAT(problems(with(R"("compile": {"deepcompile": false}, "compiled_autograd": false,
                               "eigenvalue": {"enabled": false, "max_iter": 10})")),
              ElementsAre());
}

TEST(Unsupported, GradNormOfTheOptimizerPointsToClipping) {
  EXPECT_THAT(problems_of_params("AdamW", R"("max_grad_norm": 1.0)"),
              ElementsAre(HasSubstr("Use the top-level \"gradient_clipping\"")));
}

TEST(Unsupported, OptimizersAreRefusedByNameAndMistypedOnesGetASuggestion) {
  EXPECT_THAT(problems_of_params("Lamb", ""),
              ElementsAre(HasSubstr("got \"Lamb\", which is not supported by this version")));
  EXPECT_THAT(problems_of_params("AdmaW", ""), ElementsAre(HasSubstr("Did you mean \"adamw\"?")));
}

TEST(Unsupported, BothHalfPrecisionsNameEachOther) {
  EXPECT_THAT(problems(with(R"("fp16": {"enabled": true}, "bf16": {"enabled": true})")),
              ElementsAre("bf16.enabled: expected bf16 or fp16, got both. Drop one of the "
                          "sections."));
}

TEST(Mistyped, ValuesNameWhatWasExpected) {
  EXPECT_THAT(problems_of_params("AdamW", R"("lr": "1e-3")"),
              ElementsAre(HasSubstr("optimizer.params.lr: expected a number, got \"1e-3\"")));
  EXPECT_THAT(problems_of_params("AdamW", R"("lr": true)"), ElementsAre(HasSubstr("got true")));
  EXPECT_THAT(problems_of_params("AdamW", R"("lr": -1)"), ElementsAre(HasSubstr("at least 0")));
  EXPECT_THAT(problems_of_params("AdamW", R"("betas": [0.9])"),
              ElementsAre(HasSubstr("expected two numbers, got [0.9]")));
  EXPECT_THAT(problems_of_params("AdamW", R"("betas": [0.9, 0.99, 0.999])"),
              ElementsAre(HasSubstr("expected two numbers")));
  EXPECT_THAT(problems_of_params("AdamW", R"("betas": [0.9, true])"),
              ElementsAre(HasSubstr("expected two numbers")));
  EXPECT_THAT(problems(with(R"("zero_optimization": 1)")),
              ElementsAre(HasSubstr("expected an object, got 1")));
  EXPECT_THAT(problems(with(R"("zero_optimization": {"stage": true})")),
              ElementsAre(HasSubstr("expected a whole number, got true")));
  EXPECT_THAT(problems(with(R"("zero_optimization": {"stage": 1.5})")),
              ElementsAre(HasSubstr("expected a whole number, got 1.5")));
  EXPECT_THAT(problems(with(R"("zero_optimization": {"stage": 4})")),
              ElementsAre(HasSubstr("expected 0, 1, 2 or 3, got 4")));
  EXPECT_THAT(problems(with(R"("zero_optimization": {"stage": 4294967297})")),
              ElementsAre(HasSubstr("expected 0, 1, 2 or 3, got 4294967297")));
  EXPECT_THAT(problems(with(R"("zero_optimization": {"reduce_bucket_size": 1e300})")),
              ElementsAre(HasSubstr("expected a whole number, got 1e+300")));
  EXPECT_THAT(problems(with(R"("zero_optimization": {"reduce_bucket_size": -1})")),
              ElementsAre(HasSubstr("expected at least 1, got -1")));
  EXPECT_THAT(problems(with(R"("bf16": {"enabled": 1})")),
              ElementsAre(HasSubstr("expected true or false, got 1")));
  EXPECT_THAT(problems(with(R"("reduction": "pined")")),
              ElementsAre(HasSubstr("Did you mean \"pinned\"?")));
  EXPECT_THAT(problems(with(R"("reduction": "exat")")),
              ElementsAre(HasSubstr("Did you mean \"exact\"?")));
  EXPECT_THAT(problems(with(R"("reduction": 1)")), ElementsAre(HasSubstr("expected a text")));
  EXPECT_THAT(problems(with(R"("data_types": {"grad_accum_dtype": "fp8"})")),
              ElementsAre(HasSubstr("expected \"fp32\", \"bf16\" or \"fp16\", got \"fp8\"")));
  for (const char* type : {"bf16", "fp16"})
    EXPECT_THAT(
        problems(with(R"("data_types": {"grad_accum_dtype": ")" + std::string(type) + "\"}")),
        ElementsAre(HasSubstr("expected fp32 for fp32 parameters")));
  EXPECT_THAT(problems(with(R"("data_types": {"param_dtype": "bf16"})")),
              ElementsAre(HasSubstr("Set \"bf16\"")));
}

TEST(Mistyped, AutoIsExplainedForEveryKindOfKey) {
  for (const char* keys :
       {R"("gradient_clipping": "auto")", R"("zero_optimization": {"stage": "auto"})",
        R"("zero_optimization": "auto")", R"("fp16": {"enabled": "auto"})",
        R"("steps_per_print": "auto")", R"("bf16": {"enabled": "auto"})"})
    EXPECT_THAT(problems(with(keys)), ElementsAre(HasSubstr("a Hugging Face placeholder"))) << keys;
}

TEST(Mistyped, ParametersOfAnotherOptimizerAreErrors) {
  EXPECT_THAT(problems_of_params("AdamW", R"("momentum": 0.9)"),
              ElementsAre(HasSubstr("expected a parameter of AdamW, got \"momentum\"")));
  EXPECT_THAT(problems_of_params("SGD", R"("betas": [0.9, 0.99])"),
              ElementsAre(HasSubstr("expected a parameter of SGD, got \"betas\"")));
  EXPECT_THAT(problems_of_params("AdamW", R"("adam_w_mode": false)"),
              ElementsAre(HasSubstr("expected true for AdamW")));
}

TEST(Missing, OptimizerSaysWhatToAdd) {
  EXPECT_THAT(problems(R"({"train_batch_size": 2})"),
              ElementsAre(HasSubstr("got no optimizer. Add \"optimizer\": {\"type\"")));
}

TEST(Problems, AreAllListedAtOnceAndNumbered) {
  try {
    parse_config(with(R"("wandbb": 1, "zero_optimization": {"stage": 9}, "wandbb": 2)"), 2);
    ADD_FAILURE() << "expected an error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 3u);
    EXPECT_THAT(
        error.what(),
        AllOf(StartsWith("[config] wandbb: expected every key once, got it twice"),
              HasSubstr("(1 of 3 problems)\nwandbb: expected a known key"),
              HasSubstr("stage: expected 0, 1, 2 or 3, got 9"), HasSubstr("(3 of 3 problems)")));
  }
}

TEST(KeyTable, NamesEveryKeyOnceAndEveryNestedKeyHasItsSection) {
  std::set<std::string> seen;
  for (const Row& rule : schema().rows()) {
    const std::string path = rule.path;
    EXPECT_TRUE(seen.insert(path).second) << path;
    EXPECT_TRUE(Json::accept(rule.accepted)) << path;
    const std::size_t dot = path.rfind('.');
    if (dot != std::string::npos) EXPECT_EQ(seen.count(path.substr(0, dot)), 1u) << path;
    if (rule.treatment == KeyTreatment::NoEffect) EXPECT_STRNE(rule.here, "") << path;
    EXPECT_STRNE(rule.words, "") << path;
  }
}

// What the table calls honoured must show up in the effective configuration of one of these.
TEST(KeyTable, EveryHonouredKeyIsListed) {
  std::set<std::string> listed;
  const auto list = [&listed](const std::string& keys, const std::string& optimizer) {
    const std::string text =
        R"({"train_batch_size": 2, "optimizer": {"type": ")" + optimizer + "\"}, " + keys + "}";
    for (const Setting& one : explain_config(text, 2).settings) listed.insert(one.key);
  };
  for (const char* optimizer : {"SGD", "Adam"})
    for (const char* scheduler :
         {R"("WarmupLR")", R"("WarmupDecayLR", "params": {"total_num_steps": 1000})",
          R"("WarmupCosineLR", "params": {"total_num_steps": 1000})",
          R"("OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1})", R"("LRRangeTest")"})
      list(R"("scheduler": {"type": )" + std::string(scheduler) + "}", optimizer);
  // Other names of keys, and what repeats others, are listed where they are given.
  list(R"("bfloat16": {"enabled": true}, "fp16": {"fp16_master_weights_and_gradients": false},
          "zero_optimization": {"cpu_offload": false, "cpu_offload_use_pin_memory": true,
                                "stage3_gather_fp16_weights_on_model_save": true},
          "data_parallel_size": 2, "tensor_parallel": {"dtype": "bf16"})",
       "SGD");
  for (const Row& rule : schema().rows())
    if (rule.treatment == KeyTreatment::Read) EXPECT_EQ(listed.count(rule.path), 1u) << rule.path;
}

// A key without effect gets a line of its own, with the reason.
TEST(KeyTable, EveryKeyWithoutEffectIsListedWhenItIsGiven) {
  for (const Row& rule : schema().rows()) {
    if (rule.treatment != KeyTreatment::NoEffect) continue;
    const std::string path = rule.path;
    if (path.rfind("optimizer", 0) == 0) continue;  // beside the section that is there; same code
    std::string keys = "1";
    for (std::size_t end = path.size(); end != 0;) {
      const std::size_t dot = path.rfind('.', end - 1);
      const std::size_t begin = dot == std::string::npos ? 0 : dot + 1;
      keys = "\"" + path.substr(begin, end - begin) + "\": " + keys;
      if (begin != 0) keys = "{" + keys + "}";
      end = begin == 0 ? 0 : dot;
    }
    EXPECT_THAT(
        explain_config(with(keys), 2).settings.back(),
        (Setting{
            .key = path, .value = "1", .origin = Setting::Origin::NoEffect, .note = rule.here}));
  }
}

}  // namespace
}  // namespace equigrad
