// What the sections fp16, bf16, torch_autocast and data_types mean, and how they are listed.
#include "engine/config/precision.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "conformance/testing/config_text.hpp"
#include "engine/config/config.hpp"

namespace equigrad {
namespace {

using conformance::with;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Origin = Setting::Origin;
using Policy = LossScaleConfig::Policy;

std::vector<std::string> problems(const std::string& keys) {
  return conformance::problems(with(keys));
}

Setting setting(const std::string& keys, const std::string& key) {
  return conformance::setting(with(keys), key);
}

PrecisionConfig read(const std::string& keys) { return parse_config(with(keys), 2).precision; }

std::string off(const std::string& section, const std::string& keys) {
  return "\"" + section + R"(": {"enabled": false, )" + keys + "}";
}

TEST(Fp16, DefaultsAreDeepSpeeds) {
  PrecisionConfig expected;
  expected.param = expected.accumulate = DataType::Fp16;
  expected.loss_scale = {Policy::DeepSpeed, 1.0, 16, 1000, 2, false, 1.0};
  EXPECT_EQ(read(R"("fp16": {"enabled": true})"), expected);
  EXPECT_EQ(read(R"("fp16": {"enabled": true, "auto_cast": false, "loss_scale": 0})"), expected);
}

TEST(Fp16, EveryKeyReachesItsField) {
  PrecisionConfig expected;
  expected.param = expected.accumulate = expected.master = DataType::Fp16;
  expected.loss_scale = {Policy::DeepSpeed, 1.0, 8, 50, 3, true, 0.25};
  EXPECT_EQ(read(R"("fp16": {"enabled": true, "initial_scale_power": 8, "loss_scale_window": 50,
                    "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 0.25,
                    "fp16_master_weights_and_grads": true})"),
            expected);
}

TEST(Fp16, AStaticScaleTakesThePlaceOfTheDynamicOne) {
  const std::string keys = R"("fp16": {"enabled": true, "loss_scale": 128, "hysteresis": 0})";
  LossScaleConfig expected;
  expected.policy = Policy::Static;
  expected.static_scale = 128.0;
  EXPECT_EQ(read(keys).loss_scale, expected);
  EXPECT_EQ(setting(keys, "fp16.hysteresis"), (Setting{.key = "fp16.hysteresis",
                                                       .value = "0",
                                                       .origin = Origin::NoEffect,
                                                       .note = "loss_scale is static"}));
  EXPECT_EQ(
      setting(keys, "fp16.loss_scale"),
      (Setting{.key = "fp16.loss_scale", .value = "128.0", .origin = Origin::File, .note = ""}));
}

TEST(Fp16, AScaleThatRoundsIsRefusedOnce) {
  const auto of = [](const char* scale) {
    return problems(R"("fp16": {"enabled": true, "loss_scale": )" + std::string(scale) + "}");
  };
  EXPECT_THAT(of("1000"),
              ElementsAre("fp16.loss_scale: expected a power of two, which changes exponents only, "
                          "got 1000.0. Write 512.0 or 1024.0. 0 stands for a dynamic scale."));
  EXPECT_THAT(of("-128"), ElementsAre(HasSubstr("from 2^-126 to 2^126, got -128.0")));
  EXPECT_THAT(of("1e300"), ElementsAre(HasSubstr("from 2^-126 to 2^126, got 1e+300")));
  EXPECT_THAT(of("true"), ElementsAre(HasSubstr("fp16.loss_scale: expected a number, got true")));
  EXPECT_THAT(of("\"128\""), ElementsAre(HasSubstr("expected a number, got \"128\"")));
  EXPECT_THAT(of("0.5"), IsEmpty());
}

TEST(Fp16, MastersHaveTwoSpellings) {
  const std::string grads = "fp16_master_weights_and_grads";
  const std::string gradients = "fp16_master_weights_and_gradients";
  const auto keys = [](const std::string& masters) {
    return R"("fp16": {"enabled": true, )" + masters + "}";
  };
  const std::string new_one = keys("\"" + gradients + "\": true");
  EXPECT_EQ(read(new_one), read(keys("\"" + grads + "\": true")));
  EXPECT_EQ(read(new_one).master, DataType::Fp16);
  EXPECT_EQ(setting(new_one, "fp16." + gradients).origin, Origin::File);
  EXPECT_EQ(
      setting(new_one, "fp16." + grads),
      (Setting{.key = "fp16." + grads,
               .value = "true",
               .origin = Origin::Derived,
               .note = "as fp16_master_weights_and_gradients, which is another spelling of it"}));
  EXPECT_THAT(problems(keys("\"" + grads + "\": true, \"" + gradients + "\": true")), IsEmpty());
  for (const char* both : {"true", "false"}) {
    const std::string other = both == std::string("true") ? "false" : "true";
    EXPECT_THAT(problems(keys("\"" + grads + "\": " + both + ", \"" + gradients + "\": " + other)),
                ElementsAre("fp16." + gradients + ": expected what " + grads + " says, got " +
                            other + " and not " + both + ". Drop one of the two spellings."));
  }
}

TEST(Bf16, EveryKeyReachesItsField) {
  PrecisionConfig expected;
  expected.param = expected.accumulate = DataType::Bf16;
  EXPECT_EQ(read(R"("bf16": {"enabled": true})"), expected);
  expected.check_grad_overflow = false;
  EXPECT_EQ(read(R"("bf16": {"enabled": true, "check_grad_overflow": false,
                             "immediate_grad_update": true})"),
            expected);
  expected.master = DataType::Bf16;
  expected.optimizer_state = DataType::Bf16;
  EXPECT_EQ(read(R"("zero_optimization": {"stage": 1}, "bf16": {"enabled": true,
      "check_grad_overflow": false, "bf16_master_weights_and_grads": true,
      "bf16_optimizer_states": true})"),
            expected);
  expected.optimizer_state = DataType::Fp32;
  EXPECT_EQ(read(R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
      "bf16": {"enabled": true, "check_grad_overflow": false,
               "bf16_master_weights_and_grads": true})"),
            expected);
}

TEST(Bf16, ItsOldNameIsTheSame) {
  const std::string old = R"("bfloat16": {"enabled": true, "check_grad_overflow": false})";
  EXPECT_EQ(read(old),
            read(R"("bf16": {"enabled": true, "check_grad_overflow": false}, "bfloat16": null)"));
  EXPECT_EQ(
      setting(old, "bfloat16.enabled"),
      (Setting{.key = "bfloat16.enabled", .value = "true", .origin = Origin::File, .note = ""}));
  EXPECT_THAT(problems(old + R"(, "bf16": {"enabled": true})"),
              ElementsAre("bfloat16: expected it or \"bf16\", got both. Drop it; it is bf16's old "
                          "name."));
  EXPECT_THAT(problems(old + R"(, "fp16": {"enabled": true})"),
              ElementsAre(HasSubstr("bf16.enabled: expected bf16 or fp16, got both")));
  EXPECT_THAT(problems(R"("bfloat16": {"enabeld": true})"),
              ElementsAre(HasSubstr("Did you mean \"enabled\"?")));
}

TEST(Autocast, FollowsTheOtherSections) {
  PrecisionConfig expected;
  expected.autocast.enabled = true;
  const std::string on = R"("torch_autocast": {"enabled": true})";
  EXPECT_EQ(read(on), expected);
  EXPECT_EQ(setting(on, "torch_autocast.dtype"),
            (Setting{.key = "torch_autocast.dtype",
                     .value = "\"bf16\"",
                     .origin = Origin::Derived,
                     .note = "DeepSpeed leaves it to torch, which chooses float16 on a GPU"}));
  EXPECT_EQ(read(R"("torch_autocast": {"enabled": true, "dtype": "bfloat16"})"), expected);
  expected.param = expected.accumulate = DataType::Bf16;
  EXPECT_EQ(read(on + R"(, "bf16": {"enabled": true})"), expected);
  expected.param = expected.accumulate = expected.autocast.dtype = DataType::Fp16;
  expected.loss_scale.policy = Policy::DeepSpeed;
  EXPECT_EQ(read(on + R"(, "fp16": {"enabled": true})"), expected);
  expected.loss_scale = {Policy::Static, 8.0};
  EXPECT_EQ(read(on + R"(, "fp16": {"enabled": true, "loss_scale": 8})"), expected);
}

TEST(Autocast, InFp16HasTorchsScaleUnlessFp16HasOne) {
  LossScaleConfig expected;
  expected.policy = Policy::GradScaler;
  expected.initial_scale_power = 16;
  expected.loss_scale_window = 2000;
  for (const char* name : {"fp16", "float16", "half", "torch.float16", "FP16"}) {
    const PrecisionConfig precision =
        read(R"("torch_autocast": {"enabled": true, "dtype": ")" + std::string(name) + "\"}");
    EXPECT_EQ(precision.loss_scale, expected) << name;
    EXPECT_EQ(precision.autocast.dtype, DataType::Fp16) << name;
    EXPECT_EQ(precision.param, DataType::Fp32) << name;
  }
  EXPECT_EQ(
      setting(R"("torch_autocast": {"enabled": true, "dtype": "fp16"})", "bf16.check_grad_overflow")
          .note,
      "a step that overflows is always skipped");
}

TEST(Autocast, ModulesAreStoredByTheirFullNames) {
  const auto of = [](const std::string& list) {
    return read(R"("torch_autocast": {"enabled": true, "lower_precision_safe_modules": )" + list +
                "}")
        .autocast.lower_precision_safe_modules;
  };
  EXPECT_THAT(of("null"), ElementsAre("torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d",
                                      "torch.nn.Conv3d"));
  EXPECT_THAT(of("[]"), IsEmpty());
  EXPECT_THAT(of(R"(["Linear", "torch.nn.GRUCell", "torch.nn.modules.conv.Conv2d", "mine.Linear",
                     "mine::Block"])"),
              ElementsAre("torch.nn.Linear", "torch.nn.GRUCell", "torch.nn.Conv2d", "mine.Linear",
                          "mine::Block"));
  for (const char* wrong : {"\"Linear\"", "[1]", "{}", "[[\"Linear\"]]"})
    EXPECT_THAT(
        problems(R"("torch_autocast": {"lower_precision_safe_modules": )" + std::string(wrong) +
                 "}"),
        ElementsAre(HasSubstr("expected a list of class names, got " + std::string(wrong))));
}

TEST(DataTypes, WindowAndCommunicationHaveTheirOwn) {
  const std::string fp16 = R"("fp16": {"enabled": true})", bf16 = R"("bf16": {"enabled": true})";
  const auto window = [](const std::string& type) {
    return R"(, "data_types": {"grad_accum_dtype": ")" + type + "\"}";
  };
  EXPECT_EQ(read(fp16 + window("fp32")).accumulate, DataType::Fp32);
  EXPECT_EQ(read(fp16 + window("fp16")).accumulate, DataType::Fp16);
  EXPECT_EQ(read(bf16 + window("fp32")).accumulate, DataType::Fp32);
  EXPECT_EQ(setting(fp16, "data_types.grad_accum_dtype"),
            (Setting{.key = "data_types.grad_accum_dtype",
                     .value = "\"fp16\"",
                     .origin = Origin::Derived,
                     .note = "the parameters' type"}));
  EXPECT_EQ(setting(fp16 + R"(, "reduction": "exact")", "data_types.grad_accum_dtype"),
            (Setting{.key = "data_types.grad_accum_dtype",
                     .value = "\"fp32\"",
                     .origin = Origin::Derived,
                     .note = "what an exact sum is rounded to"}));
  EXPECT_EQ(read(fp16 + R"(, "data_types": {"param_dtype": "float16"})").param, DataType::Fp16);
  EXPECT_THAT(problems(bf16 + R"(, "data_types": {"param_dtype": "fp16"})"),
              ElementsAre("data_types.param_dtype: expected the type that \"bf16\", \"fp16\" and "
                          "\"amp\" choose, bf16, got \"fp16\". Set \"fp16\": {\"enabled\": ...} "
                          "instead."));

  const auto communication_dtype = [](const char* type) {
    return read(R"("communication_data_type": ")" + std::string(type) + "\"").communication;
  };
  EXPECT_EQ(communication_dtype("fp32"), DataType::Fp32);
  EXPECT_EQ(communication_dtype("float16"), DataType::Fp16);
  EXPECT_EQ(communication_dtype("bfloat16"), DataType::Bf16);
  EXPECT_EQ(read(fp16).communication, std::nullopt);
  EXPECT_EQ(setting(fp16, "communication_data_type"),
            (Setting{.key = "communication_data_type",
                     .value = "null",
                     .origin = Origin::Default,
                     .note = "gradients are sent in the type they have"}));
  EXPECT_EQ(setting(R"("communication_data_type": "fp32", "torch_autocast": {"enabled": true})",
                    "communication_data_type"),
            (Setting{.key = "communication_data_type",
                     .value = "\"fp32\"",
                     .origin = Origin::File,
                     .note = "for every parameter, whatever torch_autocast.dtype is"}));
  EXPECT_THAT(problems(R"("communication_data_type": "int8")"),
              ElementsAre(HasSubstr("communication_data_type: expected \"fp32\", \"bf16\" or")));
}

TEST(Off, ASectionChangesNothingButItsTypesAreRead) {
  for (const auto& [section, keys] : std::vector<std::pair<std::string, std::string>>{
           {"fp16", R"("loss_scale": 1000, "auto_cast": true, "hysteresis": -1,
                       "fp16_master_weights_and_grads": true)"},
           {"bf16", R"("bf16_master_weights_and_grads": true, "bf16_optimizer_states": true,
                       "check_grad_overflow": false)"},
           {"torch_autocast", R"("dtype": "fp16", "lower_precision_safe_modules": ["Linaer"])"}})
    EXPECT_EQ(read(off(section, keys)), PrecisionConfig{}) << section;
  for (const auto& [section, key, value] :
       std::vector<std::array<std::string, 3>>{{"fp16", "loss_scale", "1000.0"},
                                               {"fp16", "loss_scale_window", "7"},
                                               {"fp16", "fp16_master_weights_and_grads", "true"},
                                               {"bf16", "bf16_optimizer_states", "true"},
                                               {"torch_autocast", "dtype", "\"fp16\""}})
    EXPECT_EQ(setting(off(section, "\"" + key + "\": " + value), section + "." + key),
              (Setting{.key = section + "." + key,
                       .value = value,
                       .origin = Origin::NoEffect,
                       .note = "it is off"}));
  EXPECT_EQ(setting(off("bf16", R"("check_grad_overflow": false)"), "bf16.check_grad_overflow"),
            (Setting{.key = "bf16.check_grad_overflow",
                     .value = "false",
                     .origin = Origin::NoEffect,
                     .note = "fp32 always throws"}));
  for (const std::string keys : {"\"hysteresis\": true", "\"loss_scale\": \"dynamic\"",
                                 "\"consecutive_hysteresis\": 1", "\"auto_cast\": \"no\""})
    EXPECT_THAT(problems(off("fp16", keys)), ElementsAre(HasSubstr("expected "))) << keys;
  EXPECT_THAT(problems(off("torch_autocast", "\"dtype\": \"int8\"")),
              ElementsAre(HasSubstr("torch_autocast.dtype: expected \"fp32\"")));
}

}  // namespace
}  // namespace equigrad
