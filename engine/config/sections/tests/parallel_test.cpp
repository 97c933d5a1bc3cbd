// Groups of ranks: the sizes and what they say of the batch, and the specs of tensor_parallel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/testing/config_text.hpp"
#include "engine/config/config.hpp"

namespace equigrad {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Origin = Setting::Origin;
using Type = LayerSpec::Type;

std::string micro(const std::string& keys) {
  return R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5,
             "optimizer": {"type": "SGD"}, )" +
         keys + "}";
}

std::string tensor(const std::string& keys, int size = 2) {
  return micro(R"("tensor_parallel": {"autotp_size": )" + std::to_string(size) +
               (keys.empty() ? "" : ", ") + keys + "}");
}

std::string specs(const std::string& list, const std::string& beside = "") {
  return tensor(R"("partition_config": {"layer_specs": )" + list + beside + "}");
}

std::vector<std::string> problems(const std::string& text, int world) {
  try {
    explain_config(text, world);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(Sizes, TheBatchIsOfTheDataRanks) {
  const struct {
    std::string keys;
    int world;
    std::int64_t data;
  } cases[] = {{R"("dump_state": 1)", 4, 4},
               {R"("tensor_parallel": {"autotp_size": 0})", 4, 4},
               {R"("tensor_parallel": {"autotp_size": 1})", 4, 4},
               {R"("tensor_parallel": {"autotp_size": 2})", 4, 2},
               {R"("tensor_parallel": {"autotp_size": 4})", 4, 1},
               {R"("sequence_parallel_size": 2)", 6, 3},
               {R"("tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 3)", 12, 2}};
  for (const auto& one : cases) {
    const EngineConfig config = load_config(micro(one.keys), one.world);
    EXPECT_EQ(config.train_batch_size, 15 * one.data) << one.keys;
    EXPECT_EQ(config.data_parallel_size(one.world), one.data) << one.keys;
    validate(config, one.world);
  }
  const EngineConfig split = load_config(tensor("", 4), 8);
  EXPECT_EQ(split.tensor_parallel_size(), 4);
  EXPECT_EQ(split.sequence_parallel_size, 1);
  EXPECT_EQ(EngineConfig{}.tensor_parallel_size(), 1);
}

TEST(Sizes, AGivenBatchIsSpreadOverTheDataRanks) {
  const auto of = [](const std::string& sizes) {
    return R"({"optimizer": {"type": "SGD"}, "tensor_parallel": {"autotp_size": 2}, )" + sizes +
           "}";
  };
  EXPECT_EQ(load_config(of(R"("train_batch_size": 8)"), 4).train_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(load_config(of(R"("train_batch_size": 8, "train_micro_batch_size_per_gpu": 2)"), 4)
                .gradient_accumulation_steps,
            2);
  EXPECT_THAT(problems(of(R"("train_batch_size": 7)"), 4),
              ElementsAre("train_batch_size: expected a multiple of accumulation x data ranks = "
                          "1 x 2 = 2, got 7. Change one of the keys, or drop one."));
  EXPECT_THAT(problems(of(R"("train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                             "gradient_accumulation_steps": 1)"),
                       4),
              ElementsAre(HasSubstr("micro x accumulation x data ranks = 2 x 1 x 2 = 4, got 8")));
}

TEST(Sizes, AWorldThatTheyDoNotDivideIsOneProblem) {
  EXPECT_THAT(problems(tensor("", 4), 6),
              ElementsAre("tensor_parallel.autotp_size: expected a number of ranks that is a "
                          "multiple of tensor x sequence = 4 x 1, got 6. Start another number of "
                          "ranks, or lower the sizes."));
  EXPECT_THAT(problems(micro(R"("sequence_parallel_size": 3)"), 4),
              ElementsAre(StartsWith("sequence_parallel_size: expected a number of ranks")));
  EXPECT_THAT(problems(tensor("", 4), 2), ElementsAre(HasSubstr("multiple of")));
  EXPECT_THAT(problems(micro(R"("tensor_parallel": {"autotp_size": 4611686018427387904},
                                "sequence_parallel_size": 4611686018427387904)"),
                       4),
              ElementsAre(HasSubstr("multiple of")));
  EngineConfig config;
  config.train_batch_size = 6;
  config.tensor_parallel.autotp_size = 4;
  EXPECT_THROW(validate(config, 6), ConfigError);
  EXPECT_THAT(problems(micro(R"("sequence_parallel_size": 0)"), 4),
              ElementsAre(HasSubstr("sequence_parallel_size: expected at least 1, got 0")));
  EXPECT_THAT(problems(tensor("", -1), 4), ElementsAre(HasSubstr("expected at least 0, got -1")));
}

TEST(Sizes, DataRanksAreDerivedAndMayBeRepeated) {
  const auto data = [](const std::string& keys) {
    return micro(keys + R"("zero_optimization": {})");
  };
  for (const Setting& one : explain_config(data(R"("sequence_parallel_size": 2, )"), 6).settings)
    if (one.key == "data_parallel_size")
      EXPECT_EQ(one, (Setting{.key = one.key,
                              .value = "3",
                              .origin = Origin::Derived,
                              .note = "world / (tensor x sequence)"}));
  const std::string two = R"("sequence_parallel_size": 2, "data_parallel_size": )";
  EXPECT_THAT(problems(data(two + "3, "), 6), IsEmpty());
  EXPECT_THAT(problems(data(two + "6, "), 6),
              ElementsAre("data_parallel_size: expected world / (tensor x sequence) = 3, got 6. "
                          "Drop the key; it is derived."));
}

TEST(Sizes, OtherKeysForTheTensorSizeSayTheSame) {
  for (const char* inner : {R"("tp": {"tp_size": 2})", R"("tp": {"tp_size": 1})", R"("tp": {})",
                            R"("preset_model": "llama", "partition_config": {"tp_size": 2})"})
    EXPECT_THAT(problems(tensor(inner), 2), IsEmpty()) << inner;
  EXPECT_THAT(problems(tensor(R"("tp": {"tp_size": 4})"), 4),
              ElementsAre("tensor_parallel.tp.tp_size: expected the size of autotp_size, 2, got 4. "
                          "Write the size at autotp_size, and drop this key."));
  EXPECT_THAT(problems(micro(R"("tensor_parallel": {"tp": {"tp_size": 4}})"), 4),
              ElementsAre(HasSubstr("the size of autotp_size, 0, got 4")));
  EXPECT_THAT(problems(tensor(R"("preset_model": "llama", "partition_config": {"tp_size": 4})"), 4),
              ElementsAre(StartsWith("tensor_parallel.partition_config.tp_size: expected")));
  EXPECT_THAT(problems(tensor(R"("tp": {"tp_size": 0})"), 4),
              ElementsAre(HasSubstr("expected at least 1, got 0")));
  EXPECT_THAT(problems(tensor(R"("tp_size": 2)"), 4),
              ElementsAre(HasSubstr("expected a known key of tensor_parallel, got \"tp_size\"")));
}

TEST(Tensor, StageThreeIsRefusedWithTheReason) {
  const auto at_stage = [](int stage, int size) {
    return problems(micro(R"("tensor_parallel": {"autotp_size": )" + std::to_string(size) +
                          R"(}, "zero_optimization": {"stage": )" + std::to_string(stage) + "}"),
                    4);
  };
  for (int stage = 0; stage < 3; ++stage) EXPECT_THAT(at_stage(stage, 2), IsEmpty());
  EXPECT_THAT(at_stage(3, 1), IsEmpty());
  EXPECT_THAT(at_stage(3, 2),
              ElementsAre(AllOf(HasSubstr("tensor_parallel.autotp_size: "),
                                HasSubstr("pages of a split parameter are not built"))));
}

TEST(Tensor, APresetIsOneOfSevenInAnyCase) {
  for (const char* name :
       {"llama", "Bloom", "CHATGLM", "mixtral", "DeepSeek_V2", "qwen2", "phi3"}) {
    const auto config = load_config(tensor(R"("preset_model": ")" + std::string(name) + "\""), 2);
    EXPECT_THAT(kPresetModels, testing::Contains(config.tensor_parallel.preset_model));
  }
  EXPECT_EQ(load_config(tensor(R"("preset_model": "DeepSeek_V2")"), 2).tensor_parallel.preset_model,
            "deepseek_v2");
  EXPECT_THAT(problems(tensor(R"("preset_model": "lama")"), 2),
              ElementsAre(AllOf(HasSubstr("\"qwen2\" or \"phi3\", got \"lama\""),
                                HasSubstr("Did you mean \"llama\"?"))));
  EngineConfig config;
  config.train_batch_size = 1;
  config.tensor_parallel = {.autotp_size = 2,
                            .preset_model = "gpt9",
                            .partition_config = {},
                            .vocab_parallel_lm_head = false};
  EXPECT_THROW(validate(config, 2), ConfigError);
}

TEST(Tensor, EveryKeyReachesItsField) {
  const auto config = load_config(
      tensor(R"("preset_model": "llama", "vocab_parallel_lm_head": true, "dtype": "fp32",
                "partition_config": {"use_default_specs": false, "strict_mode": true,
                  "lm_head_patterns": ["out"], "layer_specs": [{"patterns": ["a"]}]})"),
      2);
  const PartitionConfig expected{.use_default_specs = false,
                                 .strict_mode = true,
                                 .layer_specs = {{.patterns = {"a"},
                                                  .type = Type::Column,
                                                  .shape = {},
                                                  .partition_dim = {},
                                                  .model_types = {},
                                                  .gather_output = false,
                                                  .grad_allreduce = false}},
                                 .lm_head_patterns = {"out"}};
  EXPECT_EQ(config.tensor_parallel.partition_config, expected);
  EXPECT_TRUE(config.tensor_parallel.vocab_parallel_lm_head);
  for (const char* none : {"null", "{}"})
    EXPECT_EQ(load_config(tensor(R"("partition_config": )" + std::string(none)), 2)
                  .tensor_parallel.partition_config,
              std::nullopt);
  const PartitionConfig usual;
  EXPECT_TRUE(usual.use_default_specs);
  EXPECT_FALSE(usual.strict_mode);
  EXPECT_THAT(usual.lm_head_patterns, ElementsAre("lm_head", "embed_out"));
}

TEST(Specs, OfNothingAreRefusedUnlessAPresetFollows) {
  EXPECT_THAT(problems(specs("[]"), 2),
              ElementsAre(HasSubstr("expected a spec, or preset_model beside use_default_specs")));
  const std::string preset = R"("preset_model": "llama", "partition_config": )";
  EXPECT_THAT(problems(tensor(preset + R"({"strict_mode": true})"), 2), IsEmpty());
  EXPECT_THAT(problems(tensor(preset + R"({"use_default_specs": false})"), 2),
              ElementsAre(HasSubstr("got neither")));
}

TEST(Tensor, WhatHasNoEffectSaysWhy) {
  const auto note = [](const std::string& text, const std::string& key) {
    for (const Setting& one : explain_config(text, 2).settings)
      if (one.key == "tensor_parallel." + key) return one;
    return Setting{};
  };
  const Setting off = note(tensor(R"("preset_model": "llama")", 0), "preset_model");
  EXPECT_EQ(off.origin, Origin::NoEffect);
  EXPECT_EQ(off.note, "it is off");
  const Setting replaced = note(tensor(R"("preset_model": "llama", "partition_config":
      {"use_default_specs": false, "layer_specs": [{"patterns": ["a"]}]})"),
                                "preset_model");
  EXPECT_EQ(replaced.origin, Origin::NoEffect);
  EXPECT_EQ(replaced.note, "use_default_specs is false");
  EXPECT_EQ(note(tensor(R"("preset_model": "llama")"), "preset_model").origin, Origin::File);
  EXPECT_EQ(note(tensor(R"("tp_overlap_comm": true)"), "tp_overlap_comm").origin, Origin::NoEffect);
}

TEST(Tensor, WhatIsNotThereIsRefusedByNameWithARemedy) {
  const auto of = [](const std::string& keys) { return problems(tensor(keys), 2); };
  EXPECT_THAT(of(R"("vocab_parallel_ce_backend": "liger")"),
              ElementsAre(HasSubstr("expected \"torch\", got \"liger\"")));
  EXPECT_THAT(of(R"("injection_policy_tuple": ["o_proj"])"),
              ElementsAre(HasSubstr("Name them in partition_config")));
  EXPECT_THAT(of(R"("keep_module_on_host": true)"), ElementsAre(HasSubstr("expected false")));
  EXPECT_THAT(of(R"("replace_with_kernel_inject": true)"), ElementsAre(HasSubstr("Drop the key")));
  EXPECT_THAT(of(R"("kernel_inject": true)"), ElementsAre(HasSubstr("Drop the key")));
  EXPECT_THAT(of(R"("tp": {"tp_grain_size": 64})"), ElementsAre(HasSubstr("Every cut is even.")));
  EXPECT_THAT(of(R"("tp": {"mpu": {"a": 1}})"), ElementsAre(HasSubstr("Give it to initialize.")));
  EXPECT_THAT(of(R"("partition_config": {"embedding_partition_dim": 0,
                                         "layer_specs": [{"patterns": ["a"]}]})"),
              ElementsAre(HasSubstr("\"row\" cuts the vocabulary")));
  EXPECT_THAT(of(R"("dtype": "bf16")"),
              ElementsAre(HasSubstr("tensor_parallel.dtype: expected the type that \"bf16\" and "
                                    "\"fp16\" choose, fp32, got \"bf16\"")));
  EXPECT_THAT(problems(micro(R"("tensor_parallel": false)"), 2),
              ElementsAre(HasSubstr("expected an object, got false")));
  EXPECT_THAT(of(R"("vocab_parallel_ce_backend": "torch", "keep_module_on_host": false,
                    "tp": {"tp_grain_size": 1})"),
              IsEmpty());
}

}  // namespace
}  // namespace equigrad
