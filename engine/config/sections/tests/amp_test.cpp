// The section "amp" is the other sections under older names.
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
using testing::IsEmpty;
using Origin = Setting::Origin;
using Policy = LossScaleConfig::Policy;

std::string amp(const std::string& keys, const std::string& others = "") {
  return R"({"train_batch_size": 2, "optimizer": {"type": "AdamW"}, "amp": {"enabled": true)" +
         (keys.empty() ? "" : ", " + keys) + "}" + (others.empty() ? "" : ", " + others) + "}";
}

LossScaleConfig scaler() {
  LossScaleConfig scale;
  scale.policy = Policy::GradScaler;
  scale.initial_scale_power = 16;
  scale.loss_scale_window = 2000;
  return scale;
}

LossScaleConfig fixed(double value) {
  LossScaleConfig scale;
  scale.policy = Policy::Static;
  scale.static_scale = value;
  return scale;
}

TEST(Amp, LevelsAreTheOtherSections) {
  EXPECT_EQ(parse_config(amp(R"("opt_level": "O0")"), 2), parse_config(with("\"amp\": {}"), 2));
  const EngineConfig autocast =
      parse_config(with(R"("torch_autocast": {"enabled": true, "dtype": "float16"})"), 2);
  EXPECT_EQ(parse_config(amp(R"("opt_level": "O1")"), 2), autocast);
  EXPECT_EQ(parse_config(amp(""), 2), autocast);
  EXPECT_EQ(autocast.precision.loss_scale, scaler());
  EngineConfig fp16 = parse_config(with(R"("fp16": {"enabled": true})"), 2);
  fp16.precision.loss_scale = scaler();
  EXPECT_EQ(parse_config(amp(R"("opt_level": "O2")"), 2), fp16);
  EXPECT_EQ(fp16.precision.master, DataType::Fp32);
  fp16.precision.accumulate = DataType::Fp32;
  EXPECT_EQ(
      parse_config(amp(R"("opt_level": "O2")",
                       R"("data_types": {"grad_accum_dtype": "fp32", "param_dtype": "fp16"})"),
                   2),
      fp16);
}

TEST(Amp, ScaleIsDynamicOrANumber) {
  for (const std::string level : {"O1", "O2"}) {
    const auto of = [&](const std::string& scale) {
      return amp(R"("opt_level": ")" + level + R"(", "loss_scale": )" + scale);
    };
    EXPECT_EQ(parse_config(of("\"dynamic\""), 2).precision.loss_scale, scaler());
    EXPECT_EQ(parse_config(of("128"), 2).precision.loss_scale, fixed(128.0));
    EXPECT_EQ(parse_config(of("\"128.0\""), 2).precision.loss_scale, fixed(128.0));
    EXPECT_EQ(parse_config(of("1"), 2).precision.loss_scale, fixed(1.0));
    EXPECT_THAT(problems(of("100")),
                ElementsAre("amp.loss_scale: expected a power of two, which changes exponents "
                            "only, got 100.0. Write 64.0 or 128.0. \"dynamic\" is the default."));
    for (const char* wrong : {"0", "-1", "\"inf\""})
      EXPECT_THAT(problems(of(wrong)), ElementsAre(HasSubstr("expected a power of two from 2^")));
    for (const char* wrong : {"true", "\"dynamical\"", "\"128x\"", "\"\"", "[]"})
      EXPECT_THAT(problems(of(wrong)),
                  ElementsAre(HasSubstr("amp.loss_scale: expected \"dynamic\" or a number, got " +
                                        std::string(wrong))));
  }
}

TEST(Amp, LevelZeroHasNoScale) {
  EXPECT_THAT(problems(amp(R"("opt_level": "O0", "loss_scale": 1.0)")), IsEmpty());
  for (const char* scale : {"2", "\"dynamic\""})
    EXPECT_THAT(problems(amp(R"("opt_level": "O0", "loss_scale": )" + std::string(scale))),
                ElementsAre(HasSubstr("amp.loss_scale: expected 1 with opt_level O0, got " +
                                      std::string(scale))));
}

TEST(Amp, OtherLevelsAreRefused) {
  EXPECT_THAT(problems(amp(R"("opt_level": "O3")")),
              ElementsAre("amp.opt_level: expected \"O0\", \"O1\" or \"O2\", got \"O3\", which is "
                          "not supported by this version. Use fp16 with "
                          "fp16_master_weights_and_grads."));
  EXPECT_THAT(problems(amp(R"("opt_level": "o1")")), ElementsAre(HasSubstr("Did you mean")));
  EXPECT_THAT(problems(amp(R"("opt_level": 1)")), ElementsAre(HasSubstr("expected a text")));
}

TEST(Amp, KeysThatTheLevelDecidesMustAgreeWithIt) {
  const auto of = [](const std::string& level, const std::string& key, const std::string& value) {
    return problems(amp(R"("opt_level": ")" + level + "\", \"" + key + "\": " + value));
  };
  for (const auto& [key, accepted] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"patch_torch_functions", {"false", "true", "false"}},
           {"master_weights", {"false", "null", "true"}},
           {"keep_batchnorm_fp32", {"true", "null", "false"}}})
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string level = "O" + std::to_string(i);
      EXPECT_THAT(of(level, key, "null"), IsEmpty());
      EXPECT_THAT(of(level, key, "1"), ElementsAre(HasSubstr("expected true or false, got 1")));
      for (const std::string value : {"true", "false"})
        if (value == accepted[i])
          EXPECT_THAT(of(level, key, value), IsEmpty()) << level << key;
        else
          EXPECT_THAT(of(level, key, value),
                      ElementsAre(HasSubstr("with opt_level " + level + ", got " + value)))
              << level << key;
    }
  EXPECT_THAT(of("O2", "keep_batchnorm_fp32", "true"),
              ElementsAre("amp.keep_batchnorm_fp32: expected false with opt_level O2, got true. "
                          "All parameters have one type here. Drop the key."));
}

TEST(Amp, KeysAtApexsDefaultAreAccepted) {
  const std::string all = amp(R"("cast_model_type": null, "cast_model_outputs": null,
      "cast_batchnorm": null, "num_losses": 1, "verbosity": 0, "min_loss_scale": null,
      "max_loss_scale": 16777216)");
  EXPECT_THAT(problems(all), IsEmpty());
  EXPECT_EQ(setting(all, "amp.max_loss_scale"), (Setting{.key = "amp.max_loss_scale",
                                                         .value = "16777216.0",
                                                         .origin = Origin::NoEffect,
                                                         .note = "the scale has no ceiling"}));
  EXPECT_THAT(problems(amp(R"("max_loss_scale": 65536)")),
              ElementsAre(HasSubstr("amp.max_loss_scale: expected 16777216, apex's default, got "
                                    "65536.0")));
}

TEST(Amp, GoesWithNoOtherSection) {
  for (const std::string other : {"fp16", "bf16", "bfloat16", "torch_autocast"}) {
    EXPECT_THAT(problems(amp("", "\"" + other + R"(": {"enabled": true})")),
                ElementsAre("amp.enabled: expected amp or " + other +
                            ", got both. Drop one of the sections."));
    EXPECT_THAT(problems(amp("", "\"" + other + R"(": {"enabled": false})")), IsEmpty());
  }
}

TEST(Amp, SaysWhatItMeans) {
  const std::string zero = amp(R"("opt_level": "O2")", R"("zero_optimization": {"stage": 2})");
  EXPECT_EQ(setting(zero, "amp.enabled"),
            (Setting{"amp.enabled", "true", Origin::File,
                     "DeepSpeed refuses it with ZeRO; here opt_level says what it means"}));
  EXPECT_EQ(setting(amp(""), "amp.enabled").note, "");
  EXPECT_EQ(setting(zero, "amp.opt_level"),
            (Setting{.key = "amp.opt_level",
                     .value = "\"O2\"",
                     .origin = Origin::File,
                     .note = "as fp16, batch norms too, with fp32 master weights"}));
  EXPECT_EQ(setting(amp(""), "amp.opt_level"), (Setting{.key = "amp.opt_level",
                                                        .value = "\"O1\"",
                                                        .origin = Origin::Derived,
                                                        .note = "as torch_autocast in float16"}));
  EXPECT_EQ(setting(zero, "amp.loss_scale"), (Setting{.key = "amp.loss_scale",
                                                      .value = "\"dynamic\"",
                                                      .origin = Origin::Default,
                                                      .note = "torch's gradient scaler"}));
  EXPECT_EQ(setting(amp(R"("opt_level": "O0")"), "amp.loss_scale").value, "1.0");
  EXPECT_EQ(setting(zero, "amp.master_weights"), (Setting{.key = "amp.master_weights",
                                                          .value = "true",
                                                          .origin = Origin::Default,
                                                          .note = "opt_level decides it"}));
  EXPECT_EQ(setting(zero, "data_types.param_dtype"), (Setting{.key = "data_types.param_dtype",
                                                              .value = "\"fp16\"",
                                                              .origin = Origin::Derived,
                                                              .note = "as amp.opt_level says"}));
  EXPECT_EQ(setting(with(R"("amp": {"opt_level": "O2", "loss_scale": 100,
                                       "keep_batchnorm_fp32": true})"),
                    "amp.keep_batchnorm_fp32"),
            (Setting{.key = "amp.keep_batchnorm_fp32",
                     .value = "true",
                     .origin = Origin::NoEffect,
                     .note = "it is off"}));
  EXPECT_THAT(problems(with(R"("amp": {"keep_batchnorm_fp32": "x", "loss_scale": "x"})")),
              ElementsAre(HasSubstr("expected true or false"), HasSubstr("\"dynamic\" or")));
}

}  // namespace
}  // namespace equigrad
