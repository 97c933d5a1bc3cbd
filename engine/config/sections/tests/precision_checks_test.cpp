// Combinations of types, scales and masters that are refused, from a file and built in code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/config/config.hpp"

namespace equigrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Policy = LossScaleConfig::Policy;

std::vector<std::string> problems(const std::string& keys) {
  try {
    parse_config(R"({"train_batch_size": 2, "optimizer": {"type": "AdamW"}, )" + keys + "}", 2);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

std::vector<std::string> problems_in_code(const EngineConfig& config) {
  try {
    validate(config, 1);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

EngineConfig of_type(DataType type, int stage = 0) {
  EngineConfig config;
  config.precision.param = config.precision.accumulate = type;
  if (type == DataType::Fp16) config.precision.loss_scale.policy = Policy::DeepSpeed;
  config.zero.stage = stage;
  return config;
}

TEST(LossScale, OfAFileIsChecked) {
  EXPECT_THAT(problems(R"("fp16": {"enabled": true, "initial_scale_power": -1,
                          "loss_scale_window": 0, "hysteresis": 0, "min_loss_scale": 0})"),
              ElementsAre(HasSubstr("fp16.initial_scale_power: expected at least 0, got -1"),
                          HasSubstr("fp16.loss_scale_window: expected at least 1, got 0"),
                          HasSubstr("fp16.hysteresis: expected at least 1, got 0"),
                          HasSubstr("fp16.min_loss_scale: expected a power of two from 2^-126 to "
                                    "2^126, got 0.0")));
  EXPECT_THAT(problems(R"("fp16": {"enabled": true, "initial_scale_power": 127})"),
              ElementsAre(HasSubstr("fp16.initial_scale_power: expected at most 126, got 127")));
  EXPECT_THAT(problems(R"("fp16": {"enabled": true, "min_loss_scale": 3})"),
              ElementsAre(HasSubstr("got 3.0. Write 2.0 or 4.0.")));
  EXPECT_THAT(problems(R"("fp16": {"enabled": true, "min_loss_scale": 512,
                          "initial_scale_power": 8})"),
              ElementsAre("fp16.min_loss_scale: expected at most 2^initial_scale_power, got 512.0 "
                          "and a power of 8. Lower it, or raise the power."));
  EXPECT_THAT(problems(R"("fp16": {"enabled": true, "min_loss_scale": 256,
                          "initial_scale_power": 8})"),
              IsEmpty());
}

TEST(LossScale, GoesWithFp16Only) {
  for (const DataType type : {DataType::Fp32, DataType::Bf16})
    for (const Policy policy : {Policy::Static, Policy::DeepSpeed, Policy::GradScaler}) {
      EngineConfig config = of_type(type);
      config.precision.loss_scale.policy = policy;
      EXPECT_THAT(problems_in_code(config),
                  ElementsAre("fp16.loss_scale: expected no loss scale without fp16, got one. Drop "
                              "it, or enable fp16."));
      config.precision.autocast.enabled = true;
      config.precision.autocast.dtype = DataType::Fp16;
      if (type == DataType::Fp32) EXPECT_THAT(problems_in_code(config), IsEmpty());
    }
  EngineConfig config = of_type(DataType::Fp16);
  for (const Policy policy : {Policy::Static, Policy::DeepSpeed, Policy::GradScaler}) {
    config.precision.loss_scale.policy = policy;
    EXPECT_THAT(problems_in_code(config), IsEmpty());
  }
  config.precision.loss_scale.policy = Policy::None;
  EXPECT_THAT(problems_in_code(config),
              ElementsAre(HasSubstr("fp16.loss_scale: expected a static or dynamic loss scale")));
  config = of_type(DataType::Fp32);
  config.precision.autocast = {true, DataType::Fp16, {}};
  EXPECT_THAT(problems_in_code(config),
              ElementsAre(HasSubstr("fp16.loss_scale: expected a static or dynamic loss scale")));
}

TEST(LossScale, BuiltInCodeIsAPowerOfTwo) {
  EngineConfig config = of_type(DataType::Fp16);
  LossScaleConfig& scale = config.precision.loss_scale;
  scale.policy = Policy::Static;
  for (const double good : {1.0, 0x1p-126, 0x1p126, 128.0}) {
    scale.static_scale = good;
    EXPECT_THAT(problems_in_code(config), IsEmpty()) << good;
  }
  for (const double bad :
       {0.0, -2.0, 3.0, 0x1p127, 0x1p-127, 0x1.8p-126, std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    scale.static_scale = bad;
    EXPECT_THAT(problems_in_code(config),
                ElementsAre(HasSubstr("fp16.loss_scale: expected a power of two")))
        << bad;
  }
  scale = {};
  scale.policy = Policy::GradScaler;
  scale.min_loss_scale = 3.0;  // it has none
  scale.initial_scale_power = 127;
  scale.loss_scale_window = 0;
  EXPECT_THAT(problems_in_code(config),
              ElementsAre(HasSubstr("fp16.initial_scale_power: expected at most 126"),
                          HasSubstr("fp16.loss_scale_window: expected at least 1, got 0")));
}

TEST(Masters, OfBf16NeedShardsAndASmallOrOffloadedState) {
  const auto of = [](int stage, const std::string& keys, const std::string& zero = "") {
    return problems(R"("zero_optimization": {"stage": )" + std::to_string(stage) + zero +
                    R"(}, "bf16": {"enabled": true, )" + keys + "}");
  };
  const std::string masters = R"("bf16_master_weights_and_grads": true)";
  const std::string both = masters + R"(, "bf16_optimizer_states": true)";
  const std::string cpu = R"(, "offload_optimizer": {"device": "cpu"})";
  const std::string no_stage =
      "bf16.bf16_master_weights_and_grads: expected ZeRO stage 1, 2 or 3 with bf16 master weights, "
      "got stage 0. Set zero_optimization.stage, or drop the key.";
  EXPECT_THAT(of(0, both), ElementsAre(no_stage));
  for (int stage = 1; stage <= 3; ++stage) {
    EXPECT_THAT(of(stage, both), IsEmpty());
    EXPECT_THAT(of(stage, both, cpu), IsEmpty());
    EXPECT_THAT(of(stage, masters, cpu), IsEmpty());
    EXPECT_THAT(of(stage, masters),
                ElementsAre("bf16.bf16_master_weights_and_grads: expected bf16_optimizer_states, "
                            "or zero_optimization.offload_optimizer with device \"cpu\", beside "
                            "bf16 master weights, got neither. Add one of them."));
    EXPECT_THAT(of(stage, R"("bf16_optimizer_states": true)"),
                ElementsAre("bf16.bf16_optimizer_states: expected false without "
                            "bf16_master_weights_and_grads, got true. Set "
                            "bf16_master_weights_and_grads to true, or drop the key."));
  }
}

TEST(Masters, OfFp16AreForEveryStage) {
  for (int stage = 0; stage <= 3; ++stage)
    EXPECT_THAT(problems(R"("zero_optimization": {"stage": )" + std::to_string(stage) +
                         R"(}, "fp16": {"enabled": true, "fp16_master_weights_and_grads": true})"),
                IsEmpty());
}

TEST(Masters, BuiltInCodeAreInFp32OrTheParametersType) {
  for (const DataType param : {DataType::Fp32, DataType::Bf16, DataType::Fp16})
    for (const DataType master : {DataType::Fp32, DataType::Bf16, DataType::Fp16}) {
      EngineConfig config = of_type(param, 1);
      config.precision.master = master;
      if (master == DataType::Bf16) config.precision.optimizer_state = DataType::Bf16;
      if (master == DataType::Fp32 || master == param)
        EXPECT_THAT(problems_in_code(config), IsEmpty());
      else
        EXPECT_THAT(problems_in_code(config),
                    ElementsAre(HasSubstr("expected master weights in fp32 or in the type of the "
                                          "parameters")));
    }
  EngineConfig config = of_type(DataType::Fp16, 1);
  config.precision.master = DataType::Fp16;
  config.precision.optimizer_state = DataType::Fp16;
  EXPECT_THAT(problems_in_code(config),
              ElementsAre(HasSubstr("expected optimizer state in fp32 or bf16, got fp16")));
  config.precision.optimizer_state = DataType::Bf16;
  EXPECT_THAT(problems_in_code(config), ElementsAre(HasSubstr("bf16.bf16_optimizer_states")));
}

TEST(Window, HasTheMastersTypeWhereTheyAreSmall) {
  const std::string path = "data_types.grad_accum_dtype";
  EXPECT_THAT(
      problems(R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true},
                  "data_types": {"grad_accum_dtype": "fp32"})"),
      ElementsAre(path + ": expected fp16 with fp16.fp16_master_weights_and_grads, got \"fp32\". "
                         "Gradients have the master weights' type; drop one of the keys."));
  EXPECT_THAT(
      problems(R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                           "bf16_optimizer_states": true},
                  "zero_optimization": {"stage": 2}, "data_types": {"grad_accum_dtype": "fp32"})"),
      ElementsAre(HasSubstr(path + ": expected bf16 with bf16.bf16_master_weights_and_grads")));
}

TEST(Window, IsFp32OrTheParametersTypeOtherwise) {
  const DataType types[] = {DataType::Fp32, DataType::Bf16, DataType::Fp16};
  for (const DataType param : types)
    for (const DataType window : types) {
      EngineConfig config = of_type(param);
      config.precision.accumulate = window;
      if (window == DataType::Fp32 || window == param)
        EXPECT_THAT(problems_in_code(config), IsEmpty());
      else
        EXPECT_THAT(problems_in_code(config),
                    ElementsAre(HasSubstr("data_types.grad_accum_dtype: expected fp32")));
    }
  EXPECT_THAT(problems(R"("fp16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"})"),
              ElementsAre("data_types.grad_accum_dtype: expected fp32 or fp16 for fp16 parameters, "
                          "got \"bf16\". Drop the key."));
}

TEST(Window, IsFp32WhereSumsAreExact) {
  for (const char* narrow : {"bf16", "fp16"}) {
    const std::string keys = R"("reduction": "exact", ")" + std::string(narrow) +
                             R"(": {"enabled": true}, "data_types": {"grad_accum_dtype": ")";
    EXPECT_THAT(
        problems(keys + narrow + "\"}"),
        ElementsAre(HasSubstr("data_types.grad_accum_dtype: expected fp32 with "
                              "\"reduction\": \"exact\", whose sums are rounded once, got \"" +
                              std::string(narrow))));
    EXPECT_THAT(problems(keys + "fp32\"}"), IsEmpty());
  }
  EngineConfig config = of_type(DataType::Bf16);
  config.reduction = ReductionOrder::Exact;
  EXPECT_THAT(problems_in_code(config), ElementsAre(HasSubstr("data_types.grad_accum_dtype")));
}

TEST(Autocast, HasTheTypeOfSmallParameters) {
  EXPECT_THAT(problems(R"("bf16": {"enabled": true},
                          "torch_autocast": {"enabled": true, "dtype": "fp16"})"),
              ElementsAre("torch_autocast.dtype: expected the type of the parameters, bf16, got "
                          "fp16. Drop the key, or the other section."));
  EXPECT_THAT(problems(R"("fp16": {"enabled": true},
                          "torch_autocast": {"enabled": true, "dtype": "bf16"})"),
              ElementsAre(HasSubstr("torch_autocast.dtype: expected the type of the parameters")));
  EXPECT_THAT(problems(R"("torch_autocast": {"enabled": true, "dtype": "float32"})"),
              ElementsAre("torch_autocast.dtype: expected \"bfloat16\" or \"float16\", got "
                          "\"float32\". Use one of the two."));
  EngineConfig config;
  config.precision.autocast.enabled = true;
  config.precision.autocast.dtype = DataType::Fp32;
  EXPECT_THAT(problems_in_code(config),
              ElementsAre("torch_autocast.dtype: expected bf16 or fp16, got fp32. Use one of the "
                          "two."));
}

TEST(Autocast, ModulesOfTorchAreKnownByName) {
  const auto of = [](const std::string& name) {
    return problems(R"("torch_autocast": {"enabled": true,
                       "lower_precision_safe_modules": ["Linear", ")" +
                    name + "\"]}");
  };
  for (const char* name :
       {"Bilinear", "Conv3d", "ConvTranspose2d", "EmbeddingBag", "GroupNorm", "BatchNorm1d",
        "InstanceNorm3d", "LSTM", "RNNCell", "MultiheadAttention", "TransformerDecoderLayer",
        "PReLU", "torch.nn.modules.normalization.LayerNorm", "my_package.layers.Expert"})
    EXPECT_THAT(of(name), IsEmpty()) << name;
  const std::string path = "torch_autocast.lower_precision_safe_modules: ";
  EXPECT_THAT(of("torch.nn.Linaer"),
              ElementsAre(path + "expected modules of torch.nn that hold parameters, or full names "
                                 "of other classes, got \"torch.nn.Linaer\". Did you mean "
                                 "\"torch.nn.Linear\"?"));
  EXPECT_THAT(of("Cov2d"), ElementsAre(HasSubstr("Did you mean \"torch.nn.Conv2d\"?")));
  for (const char* name : {"", "torch.nn.", "torch.nn.functional.linear", "Expert"})
    EXPECT_THAT(of(name), ElementsAre(HasSubstr(path + "expected modules of torch.nn"))) << name;
  EngineConfig config;
  config.precision.autocast = {true, DataType::Bf16, {"Linear"}};
  EXPECT_THAT(problems_in_code(config),
              ElementsAre(HasSubstr("got \"Linear\". Did you mean \"torch.nn.Linear\"?")));
}

TEST(Averaging, BuiltInCodeHasAFactorThatDivides) {
  using Kind = AveragingConfig::Kind;
  EngineConfig config;
  for (const Kind kind : {Kind::AfterSum, Kind::BeforeSum, Kind::Around, Kind::Never}) {
    config.averaging = {kind, 1.0};
    EXPECT_THAT(problems_in_code(config), IsEmpty());
    config.averaging = {kind, 2.0};
    if (kind == Kind::Around)
      EXPECT_THAT(problems_in_code(config), IsEmpty());
    else
      EXPECT_THAT(problems_in_code(config), ElementsAre(HasSubstr("expected 1 unless")));
  }
  for (const double bad : {0.0, -1.0, 1e300, 1e-60, 1e-40, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    config.averaging = {Kind::Around, bad};
    EXPECT_THAT(problems_in_code(config),
                ElementsAre(HasSubstr("gradient_predivide_factor: expected a number above 0")))
        << bad;
  }
}

TEST(Offload, NeedsShards) {
  EngineConfig config;
  config.offload_optimizer.to_cpu = true;
  EXPECT_THAT(problems_in_code(config),
              ElementsAre("zero_optimization.offload_optimizer.device: expected ZeRO stage 1, 2 or "
                          "3 with \"cpu\", got stage 0. Set zero_optimization.stage, or "
                          "\"none\"."));
  for (config.zero.stage = 1; config.zero.stage <= 3; ++config.zero.stage)
    EXPECT_THAT(problems_in_code(config), IsEmpty());
}

}  // namespace
}  // namespace equigrad
