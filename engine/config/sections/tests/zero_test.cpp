// The sections of zero_optimization: which modules are leaves, and where parameters are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/testing/config_text.hpp"
#include "engine/config/config.hpp"

namespace equigrad {
namespace {

using conformance::with;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Origin = Setting::Origin;

const std::string kSection = "zero_optimization.";

std::string zero(const std::string& keys, int stage = 3) {
  return with(R"("zero_optimization": {"stage": )" + std::to_string(stage) + ", " + keys + "}");
}

// As DeepSpeed 0.19.8 reads it: read_zero_config_deprecated in runtime/zero/config.py.
TEST(OldForm, TrueIsStageOneAndFalseStageNought) {
  for (const int stage : {0, 1}) {
    const std::string given = stage == 1 ? "true" : "false";
    const std::string text = with(R"("zero_optimization": )" + given);
    EXPECT_EQ(
        parse_config(text, 2),
        parse_config(with(R"("zero_optimization": {"stage": )" + std::to_string(stage) + "}"), 2));
    EXPECT_EQ(
        conformance::setting(text, kSection + "stage"),
        (Setting{.key = kSection + "stage",
                 .value = std::to_string(stage),
                 .origin = Origin::Derived,
                 .note = "\"zero_optimization\": " + given + " is DeepSpeed's old form of it"}));
  }
  for (const char* wrong : {"1", "\"on\"", "[true]"})
    EXPECT_THAT(conformance::problems(with(R"("zero_optimization": )" + std::string(wrong))),
                ElementsAre(HasSubstr("zero_optimization: expected an object, got")));
  for (const char* other : {"bf16", "fp16", "flops_profiler"})
    EXPECT_THAT(conformance::problems(with('"' + std::string(other) + "\": true")),
                ElementsAre(HasSubstr(other + std::string(": expected an object, got true"))));
  EXPECT_EQ(conformance::setting(with(R"("allgather_size": 3)"), "allgather_size").origin,
            Origin::NoEffect);
}

TEST(LeafModule, EveryKeyReachesItsField) {
  const auto of = [](const std::string& keys) {
    return parse_config(zero(R"("leaf_module": )" + keys), 2).zero.leaf_module;
  };
  EXPECT_EQ(of(R"({"classes": ["MoE", "models.MoE"]})"),
            (LeafModuleConfig{{"MoE", "models.MoE"}, {}, {}}));
  EXPECT_EQ(of(R"({"classes": [], "names": ["layers.0"], "name_suffixes": ["experts"]})"),
            (LeafModuleConfig{{}, {"layers.0"}, {"experts"}}));
  for (const char* none : {"null", "{}", R"({"names": null})"})
    EXPECT_EQ(of(none), LeafModuleConfig{}) << none;
  EXPECT_THAT(LeafModuleConfig{}.classes,
              ElementsAre(HasSubstr("MixtralSparseMoeBlock"), HasSubstr("Qwen2MoeSparseMoeBlock"),
                          HasSubstr("Qwen3MoeSparseMoeBlock")));
}

TEST(LeafModule, IsListedWithItsOriginAndHasNoEffectBelowStageThree) {
  const std::string keys = R"("leaf_module": {"names": ["a", "b"]})", section = "leaf_module.";
  EXPECT_EQ(conformance::setting(zero(keys), kSection + section + "names"),
            (Setting{.key = kSection + section + "names",
                     .value = R"(["a","b"])",
                     .origin = Origin::File,
                     .note = ""}));
  EXPECT_EQ(conformance::setting(zero(keys), kSection + section + "classes").note,
            "those that the model has");
  EXPECT_EQ(conformance::setting(zero(keys, 2), kSection + section + "names").origin,
            Origin::NoEffect);
}

TEST(GatherOnModelSave, IsReadByBothNamesAtStageThree) {
  const std::string name = "stage3_gather_16bit_weights_on_model_save";
  const std::string old = "stage3_gather_fp16_weights_on_model_save";
  const auto is_on = [](const std::string& keys) {
    return parse_config(zero(keys), 2).zero.stage3_gather_16bit_weights_on_model_save;
  };
  EXPECT_FALSE(is_on(R"("overlap_comm": true)"));
  for (const auto& key : {name, old}) {
    EXPECT_TRUE(is_on('"' + key + "\": true")) << key;
    EXPECT_FALSE(is_on('"' + key + "\": false")) << key;
    EXPECT_THAT(conformance::problems(zero('"' + key + "\": \"auto\"")),
                ElementsAre(HasSubstr(key + ": expected a value, got \"auto\"")));
    EXPECT_EQ(conformance::setting(zero('"' + key + "\": true", 2), kSection + key),
              (Setting{.key = kSection + key,
                       .value = "true",
                       .origin = Origin::NoEffect,
                       .note = "parameters are whole below stage 3"}));
  }
  EXPECT_EQ(conformance::setting(zero('"' + old + "\": true"), kSection + name),
            (Setting{.key = kSection + name,
                     .value = "true",
                     .origin = Origin::Derived,
                     .note = "as " + old + ", its old name"}));
  EXPECT_THAT(conformance::problems(zero('"' + old + "\": true, \"" + name + "\": true")),
              ElementsAre(HasSubstr(old + ": expected it or " + name + ", got both")));
}

TEST(KeysOfCheckpoints, AreTrueOfEveryCheckpoint) {
  for (const std::string key : {"elastic_checkpoint", "pipeline_loading_checkpoint"}) {
    const std::string given = zero('"' + key + "\": true");
    EXPECT_THAT(conformance::problems(given), ElementsAre());
    EXPECT_EQ(conformance::setting(given, kSection + key).origin, Origin::NoEffect) << key;
  }
}

TEST(LeafModule, WrongValuesNameTheirPath) {
  const auto of = [](const std::string& keys) {
    return conformance::problems(zero(R"("leaf_module": {)" + keys + "}"));
  };
  for (const char* wrong : {R"("experts")", "[1]", "{}", R"([""])"})
    EXPECT_THAT(of(R"("name_suffixes": )" + std::string(wrong)),
                ElementsAre(HasSubstr("leaf_module.name_suffixes: expected a list of names, got")))
        << wrong;
  EXPECT_THAT(of(R"("class": [])"), ElementsAre(HasSubstr("Did you mean \"classes\"?")));
}

TEST(OffloadParam, EveryKeyReachesItsField) {
  const auto of = [](const std::string& keys) {
    return parse_config(zero(R"("offload_param": )" + keys), 2).zero.offload_param;
  };
  EXPECT_EQ(of(R"({"device": "cpu"})"), (OffloadParamConfig{true, true}));
  EXPECT_EQ(of(R"({"device": "cpu", "pin_memory": false})"), (OffloadParamConfig{true, false}));
  for (const char* none : {"null", "{}", R"({"device": "none", "pin_memory": false})"})
    EXPECT_EQ(of(none), OffloadParamConfig{}) << none;
  const auto listed = [](const std::string& keys, const std::string& key) {
    return conformance::setting(zero(R"("offload_param": {)" + keys + "}"),
                                kSection + "offload_param." + key);
  };
  EXPECT_EQ(listed(R"("device": "cpu")", "device").value, "\"cpu\"");
  EXPECT_EQ(listed(R"("pin_memory": false)", "pin_memory").origin, Origin::NoEffect);
  EXPECT_EQ(listed(R"("device": "cpu", "max_in_cpu": 5)", "max_in_cpu").note,
            "only offloading to a disk uses it");
}

TEST(OffloadParam, WhatCannotBeIsRefusedByName) {
  const auto of = [](const std::string& keys, int stage = 3) {
    return conformance::problems(zero(R"("offload_param": {)" + keys + "}", stage));
  };
  EXPECT_THAT(of(R"("device": "nvme")"),
              ElementsAre(HasSubstr("got \"nvme\", which is not supported by this version. Use "
                                    "\"cpu\".")));
  EXPECT_THAT(of(R"("device": "cup")"), ElementsAre(HasSubstr("Did you mean \"cpu\"?")));
  EXPECT_THAT(of(R"("device": "cpu")", 2),
              ElementsAre(HasSubstr("expected \"none\" below stage 3, got \"cpu\"")));
  EXPECT_THAT(of(R"("device": "none")", 0), IsEmpty());
  EXPECT_THAT(conformance::problems(zero(R"("cpu_offload_param": true)")),
              ElementsAre(HasSubstr("Write \"offload_param\": {\"device\": \"cpu\"}.")));
}

}  // namespace
}  // namespace equigrad
