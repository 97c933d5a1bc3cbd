// How gradients are averaged and measured, and where the optimizer's state is.
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
using Kind = AveragingConfig::Kind;
using Origin = Setting::Origin;

std::vector<std::string> problems(const std::string& keys) {
  return conformance::problems(with(keys));
}

Setting setting(const std::string& keys, const std::string& key) {
  return conformance::setting(with(keys), key);
}

std::string zero(const std::string& keys) {
  return R"("zero_optimization": {"stage": 1, )" + keys + "}";
}

TEST(Averaging, EveryKeyChoosesItsKind) {
  const auto of = [](const std::string& keys) { return parse_config(with(keys), 2).averaging; };
  EXPECT_EQ(of("\"dump_state\": false"), (AveragingConfig{Kind::AfterSum, 1.0}));
  EXPECT_EQ(of(R"("prescale_gradients": false, "gradient_predivide_factor": 1,
                  "gradient_allreduce_op": "Mean")"),
            (AveragingConfig{Kind::AfterSum, 1.0}));
  EXPECT_EQ(of("\"prescale_gradients\": true"), (AveragingConfig{Kind::BeforeSum, 1.0}));
  EXPECT_EQ(of("\"gradient_predivide_factor\": 4"), (AveragingConfig{Kind::Around, 4.0}));
  EXPECT_EQ(of("\"gradient_predivide_factor\": 0.5"), (AveragingConfig{Kind::Around, 0.5}));
  EXPECT_EQ(of("\"gradient_allreduce_op\": \"sum\""), (AveragingConfig{Kind::Never, 1.0}));
}

TEST(Averaging, AFactorHasNoEffectBesidePrescaling) {
  const std::string keys = R"("prescale_gradients": true, "gradient_predivide_factor": 4)";
  EXPECT_EQ(parse_config(with(keys), 2).averaging, (AveragingConfig{Kind::BeforeSum, 1.0}));
  EXPECT_EQ(
      setting(keys, "gradient_predivide_factor"),
      (Setting{.key = "gradient_predivide_factor",
               .value = "4.0",
               .origin = Origin::NoEffect,
               .note = "prescale_gradients divides by all ranks before the sum, as in DeepSpeed"}));
  EXPECT_EQ(
      setting(keys, "prescale_gradients"),
      (Setting{.key = "prescale_gradients", .value = "true", .origin = Origin::File, .note = ""}));
}

TEST(Averaging, ASumIsNotDivided) {
  EXPECT_THAT(problems(R"("gradient_allreduce_op": "sum", "prescale_gradients": true)"),
              ElementsAre("prescale_gradients: expected false with gradient_allreduce_op = "
                          "\"sum\", got true. A sum is not divided; drop one of the two keys."));
  EXPECT_THAT(problems(R"("gradient_allreduce_op": "SUM", "gradient_predivide_factor": 2)"),
              ElementsAre("gradient_predivide_factor: expected 1 with gradient_allreduce_op = "
                          "\"sum\", got 2.0. A sum is not divided; drop one of the two keys."));
  EXPECT_EQ(
      setting(R"("gradient_allreduce_op": "SUM")", "gradient_allreduce_op"),
      (Setting{
          .key = "gradient_allreduce_op", .value = "\"sum\"", .origin = Origin::File, .note = ""}));
}

TEST(Averaging, WrongValuesNameTheirPath) {
  EXPECT_THAT(problems(R"("gradient_allreduce_op": "maen")"),
              ElementsAre("gradient_allreduce_op: expected \"mean\" or \"sum\", got \"maen\". Did "
                          "you mean \"mean\"?"));
  EXPECT_THAT(problems(R"("gradient_allreduce_op": 1)"), ElementsAre(HasSubstr("expected a text")));
  EXPECT_THAT(problems(R"("prescale_gradients": 1)"),
              ElementsAre(HasSubstr("prescale_gradients: expected true or false, got 1")));
  EXPECT_THAT(problems(R"("gradient_predivide_factor": "2")"),
              ElementsAre(HasSubstr("gradient_predivide_factor: expected a number, got \"2\"")));
  for (const char* factor : {"0", "-2", "1e300", "1e-300"})
    EXPECT_THAT(problems(R"("gradient_predivide_factor": )" + std::string(factor)),
                ElementsAre(HasSubstr("gradient_predivide_factor: expected a number above 0")));
}

TEST(Norm, IsOfTwoKinds) {
  const auto of = [](const std::string& value) {
    return parse_config(with("\"gradient_norm_type\": " + value), 2).gradient_norm;
  };
  EXPECT_EQ(of("null"), NormType::Two);
  EXPECT_EQ(of("2"), NormType::Two);
  EXPECT_EQ(of("2.0"), NormType::Two);
  EXPECT_EQ(of("\"inf\""), NormType::Infinity);
  EXPECT_EQ(
      setting("\"gradient_norm_type\": \"inf\"", "gradient_norm_type"),
      (Setting{
          .key = "gradient_norm_type", .value = "\"inf\"", .origin = Origin::File, .note = ""}));
  EXPECT_EQ(
      setting("\"dump_state\": false", "gradient_norm_type"),
      (Setting{.key = "gradient_norm_type", .value = "2", .origin = Origin::Default, .note = ""}));
  for (const char* wrong : {"1", "\"2\"", "true", "\"Infinity\"", "[2]", "2.5"})
    EXPECT_THAT(problems("\"gradient_norm_type\": " + std::string(wrong)),
                ElementsAre("gradient_norm_type: expected 2 or \"inf\", got " + std::string(wrong) +
                            ". Use one of the two."));
}

TEST(Offload, EveryKeyReachesItsField) {
  const auto of = [](const std::string& keys) {
    return parse_config(with(zero(keys)), 2).offload_optimizer;
  };
  EXPECT_EQ(of(R"("offload_optimizer": {"device": "cpu"})"), (OffloadOptimizerConfig{true, true}));
  EXPECT_EQ(of(R"("offload_optimizer": {"device": "cpu", "pin_memory": false, "ratio": 1.0})"),
            (OffloadOptimizerConfig{true, false}));
  for (const char* none : {"null", "{}", R"({"device": null, "ratio": 0.5})",
                           R"({"device": "none", "pin_memory": false})"})
    EXPECT_EQ(of(R"("offload_optimizer": )" + std::string(none)), OffloadOptimizerConfig{}) << none;
}

TEST(Offload, OldNamesAreTheSame) {
  const std::string old = zero(R"("cpu_offload": true, "cpu_offload_use_pin_memory": false)");
  EXPECT_EQ(parse_config(with(old), 2).offload_optimizer, (OffloadOptimizerConfig{true, false}));
  EXPECT_EQ(parse_config(with(zero("\"cpu_offload\": false")), 2).offload_optimizer,
            OffloadOptimizerConfig{});
  const std::string section = "zero_optimization.";
  EXPECT_EQ(setting(old, section + "offload_optimizer.device"),
            (Setting{.key = section + "offload_optimizer.device",
                     .value = "\"cpu\"",
                     .origin = Origin::Derived,
                     .note = "as cpu_offload, its old name"}));
  EXPECT_EQ(setting(old, section + "offload_optimizer.pin_memory"),
            (Setting{.key = section + "offload_optimizer.pin_memory",
                     .value = "false",
                     .origin = Origin::Derived,
                     .note = "as cpu_offload_use_pin_memory, its old name"}));
  EXPECT_EQ(setting(old, section + "cpu_offload").origin, Origin::File);
  EXPECT_THAT(
      problems(zero(R"("cpu_offload": true, "offload_optimizer": {"device": "cpu"})")),
      ElementsAre("zero_optimization.cpu_offload: expected it or \"offload_optimizer\", got both. "
                  "Drop it; it is the old name."));
  EXPECT_THAT(problems(zero(R"("cpu_offload_use_pin_memory": true,
                               "offload_optimizer": {"device": "cpu", "pin_memory": true})")),
              ElementsAre(HasSubstr("cpu_offload_use_pin_memory: expected it or "
                                    "offload_optimizer.pin_memory, got both")));
}

TEST(Offload, WrongValuesNameTheirPath) {
  const auto of = [](const std::string& keys) {
    return problems(zero(R"("offload_optimizer": {)" + keys + "}"));
  };
  const std::string path = "zero_optimization.offload_optimizer.";
  EXPECT_THAT(of(R"("device": "nvme")"),
              ElementsAre(path + "device: expected \"none\" or \"cpu\", got \"nvme\", which is not "
                                 "supported by this version. Use \"cpu\"."));
  EXPECT_THAT(of(R"("device": "cup")"), ElementsAre(HasSubstr("Did you mean \"cpu\"?")));
  EXPECT_THAT(of(R"("device": true)"), ElementsAre(HasSubstr(path + "device: expected a text")));
  EXPECT_THAT(of(R"("device": "cpu", "ratio": 0.5)"),
              ElementsAre(HasSubstr(path + "ratio: expected 1, got 0.5")));
  EXPECT_THAT(of(R"("devcie": "cpu")"), ElementsAre(HasSubstr("Did you mean \"device\"?")));
  EXPECT_THAT(problems(R"("zero_optimization": {"offload_optimizer": {"device": "cpu"}})"),
              ElementsAre(HasSubstr(path + "device: expected ZeRO stage 1, 2 or 3")));
}

TEST(Offload, KeysWithoutEffectSayWhy) {
  const std::string keys = zero(R"("offload_optimizer": {"device": "cpu", "nvme_path": "/disk",
      "buffer_count": 4, "pipeline_read": true, "fast_init": true, "convert_grad_on_cpu": false})");
  const std::string path = "zero_optimization.offload_optimizer.";
  for (const char* key : {"nvme_path", "buffer_count", "pipeline_read", "fast_init"})
    EXPECT_EQ(setting(keys, path + key).note, "only offloading to a disk uses it") << key;
  EXPECT_EQ(setting(keys, path + "convert_grad_on_cpu").origin, Origin::NoEffect);
  EXPECT_EQ(
      setting(R"("zero_optimization": {"offload_optimizer": {"ratio": 0.5}})", path + "ratio"),
      (Setting{
          .key = path + "ratio", .value = "0.5", .origin = Origin::NoEffect, .note = "it is off"}));
}

}  // namespace
}  // namespace equigrad
