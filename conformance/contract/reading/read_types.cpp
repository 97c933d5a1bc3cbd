// 15. What types, loss scales and schedules of a configuration are read as, and keys without
// effect; the whole table, and the page and the schema of all keys.
#include <algorithm>
#include <functional>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/reading/reading_cases.hpp"
#include "conformance/contract/reading/texts.hpp"
#include "engine/config/documents.hpp"

namespace equigrad::conformance::contract {
namespace {

using ScalePolicy = LossScaleConfig::Policy;
using ScheduleKind = SchedulerConfig::Kind;
using PrecisionMake = std::function<void(PrecisionConfig&)>;

// A text beside usual_keys("SGD"), and what is said of it.
struct TypesRead {
  std::string keys;
  std::vector<std::string> lines;
  PrecisionMake make;
};

std::string without_effect_line(const std::string& key, const std::string& value,
                                const std::string& why) {
  return key + " = " + value + " (no effect) " + why;
}

const std::string kParamLine = "data_types.param_dtype = \"",
                  kWindowLine = "data_types.grad_accum_dtype = \"",
                  kBySections =
                      "\" (derived) as bf16.enabled and "
                      "fp16.enabled say",
                  kAsParam = "\" (derived) the parameters' type",
                  kSkipped =
                      "a step that overflows is always "
                      "skipped";

std::vector<TypesRead> of_fp16() {
  const std::string fp16 = "fp16.", check = "bf16.check_grad_overflow = true (default) " + kSkipped;
  const auto dynamic = [](PrecisionConfig& precision) {
    precision.param = precision.accumulate = DataType::Fp16;
    precision.loss_scale.policy = ScalePolicy::DeepSpeed;
  };
  const auto usual = [&](const std::string& key, const std::string& value,
                         const std::string& note = "") {
    return fp16 + key + " = " + value + " (default)" + (note.empty() ? "" : " " + note);
  };
  const std::string fixed = "loss_scale is static", masters = "fp16_master_weights_and_grads",
                    other = "fp16_master_weights_and_gradients",
                    spelling =
                        "as fp16_master_weights_and_gradients, which is another spelling "
                        "of it";
  std::vector<std::string> on = {fp16 + "enabled = true (file)", usual("auto_cast", "false"), check,
                                 kParamLine + "fp16" + kBySections};
  const auto with = [&](std::vector<std::string> lines, bool window = true) {
    lines.insert(lines.end(), on.begin(), on.end());
    if (window) lines.push_back(kWindowLine + "fp16" + kAsParam);
    return lines;
  };
  return {
      {"fp16.enabled=true",
       with({usual("loss_scale", "0.0", "dynamic"), usual("initial_scale_power", "16"),
             usual("loss_scale_window", "1000"), usual("hysteresis", "2"),
             usual("consecutive_hysteresis", "false"), usual("min_loss_scale", "1.0"),
             usual(masters, "false")}),
       dynamic},
      {"fp16.enabled=true fp16.initial_scale_power=5 fp16.loss_scale_window=6 "
       "fp16.hysteresis=7 fp16.consecutive_hysteresis=true fp16.min_loss_scale=0.5 "
       "fp16.fp16_master_weights_and_grads=true",
       with({usual("loss_scale", "0.0", "dynamic"), fp16 + "initial_scale_power = 5 (file)",
             fp16 + "loss_scale_window = 6 (file)", fp16 + "hysteresis = 7 (file)",
             fp16 + "consecutive_hysteresis = true (file)", fp16 + "min_loss_scale = 0.5 (file)",
             fp16 + masters + " = true (file)",
             kWindowLine + "fp16\" (derived) the master weights' type"},
            false),
       [dynamic](PrecisionConfig& precision) {
         dynamic(precision);
         precision.master = DataType::Fp16;
         precision.loss_scale = {.policy = ScalePolicy::DeepSpeed,
                                 .initial_scale_power = 5,
                                 .loss_scale_window = 6,
                                 .hysteresis = 7,
                                 .consecutive_hysteresis = true,
                                 .min_loss_scale = 0.5};
       }},
      {"fp16.enabled=true fp16.loss_scale=64 fp16.fp16_master_weights_and_gradients=false "
       "fp16.hysteresis=3",
       with({fp16 + "loss_scale = 64.0 (file)", usual("initial_scale_power", "16", fixed),
             usual("loss_scale_window", "1000", fixed),
             without_effect_line(fp16 + "hysteresis", "3", fixed),
             usual("consecutive_hysteresis", "false", fixed), usual("min_loss_scale", "1.0", fixed),
             fp16 + other + " = false (file)", fp16 + masters + " = false (derived) " + spelling}),
       [](PrecisionConfig& precision) {
         precision.param = precision.accumulate = DataType::Fp16;
         precision.loss_scale = {.policy = ScalePolicy::Static, .static_scale = 64};
       }}};
}

// The section is there and off.
std::vector<TypesRead> of_fp16_that_is_off() {
  const std::string fp16 = "fp16.", masters = "fp16_master_weights_and_grads",
                    other = "fp16_master_weights_and_gradients";
  return {{"fp16.loss_scale=64 fp16.auto_cast=true fp16.fp16_master_weights_and_gradients=true",
           {without_effect_line(fp16 + "loss_scale", "64.0", "it is off"),
            without_effect_line(fp16 + "auto_cast", "true", "it is off"),
            without_effect_line(fp16 + other, "true", "it is off"),
            fp16 + masters + " = true (derived) it is off"},
           [](PrecisionConfig&) {}}};
}

std::vector<TypesRead> of_bf16() {
  const std::string enabled = "enabled = true (file)",
                    check = "check_grad_overflow = ", masters = "bf16_master_weights_and_grads = ",
                    states = "bf16_optimizer_states = ", param = kParamLine + "bf16" + kBySections;
  const auto bf16 = [](PrecisionConfig& precision) {
    precision.param = precision.accumulate = DataType::Bf16;
  };
  const std::string stage = " zero_optimization.stage=1 ",
                    is_1 = "zero_optimization.stage = 1 (file)";
  return {{"bf16.enabled=true",
           {"bf16." + enabled, "bf16." + check + "true (default)",
            "bf16." + masters + "false (default)", "bf16." + states + "false (default)", param,
            kWindowLine + "bf16" + kAsParam},
           bf16},
          {"bf16.enabled=true data_types.grad_accum_dtype=\"float32\" "
           "data_types.param_dtype=\"BFloat16\" bf16.check_grad_overflow=false",
           {"bf16." + enabled, "bf16." + check + "false (file)",
            "bf16." + masters + "false (default)", "bf16." + states + "false (default)",
            kParamLine + "bf16\" (file) as bf16.enabled and fp16.enabled say",
            kWindowLine + "fp32\" (file)"},
           [](PrecisionConfig& precision) {
             precision.param = DataType::Bf16;
             precision.check_grad_overflow = false;
           }},
          {"bfloat16.enabled=true bfloat16.check_grad_overflow=false",
           {"bfloat16." + enabled, "bfloat16." + check + "false (file)",
            "bfloat16." + masters + "false (default)", "bfloat16." + states + "false (default)",
            "-bf16.enabled", "-bf16.check_grad_overflow", "-bf16.bf16_master_weights_and_grads",
            "-bf16.bf16_optimizer_states", param, kWindowLine + "bf16" + kAsParam},
           [bf16](PrecisionConfig& precision) {
             bf16(precision);
             precision.check_grad_overflow = false;
           }},
          {"bf16.bf16_optimizer_states=true bf16.bf16_master_weights_and_grads=true",
           {without_effect_line("bf16.bf16_optimizer_states", "true", "it is off"),
            without_effect_line("bf16.bf16_master_weights_and_grads", "true", "it is off")},
           [](PrecisionConfig&) {}},
          {"bfloat16.check_grad_overflow=false",
           {"bfloat16.enabled = false (default)",
            without_effect_line("bfloat16.check_grad_overflow", "false", "fp32 always throws"),
            "bfloat16." + masters + "false (default) it is off",
            "bfloat16." + states + "false (default) it is off", "-bf16.enabled",
            "-bf16.check_grad_overflow", "-bf16.bf16_master_weights_and_grads",
            "-bf16.bf16_optimizer_states"},
           [](PrecisionConfig&) {}}};
}

std::vector<TypesRead> of_casts() {
  const std::string cast = "torch_autocast.", on = cast + "enabled = true (file)",
                    modules = cast + "lower_precision_safe_modules = ",
                    usual = modules +
                            "[\"torch.nn.Linear\",\"torch.nn.Conv1d\",\"torch.nn."
                            "Conv2d\",\"torch.nn.Conv3d\"] (default)",
                    skipped = "bf16.check_grad_overflow = true (default) " + kSkipped;
  const auto casts = [](DataType type) {
    return [type](PrecisionConfig& precision) {
      precision.autocast.enabled = true;
      precision.autocast.dtype = type;
      if (type == DataType::Fp16)
        precision.loss_scale = {.policy = ScalePolicy::GradScaler,
                                .initial_scale_power = 16,
                                .loss_scale_window = 2000};
    };
  };
  return {
      {"torch_autocast.enabled=true",
       {on, usual,
        cast + "dtype = \"bf16\" (derived) DeepSpeed leaves it to torch, which chooses float16 "
               "on a GPU"},
       casts(DataType::Bf16)},
      {"torch_autocast.enabled=true torch_autocast.dtype=\"float16\"",
       {on, usual, cast + "dtype = \"fp16\" (file)", skipped},
       casts(DataType::Fp16)},
      {"torch_autocast.enabled=true torch_autocast.dtype=\"bf16\" "
       "communication_data_type=\"bfloat16\" torch_autocast.lower_precision_safe_modules="
       "[\"Linear\",\"torch.nn.modules.conv.Conv1d\",\"my.Own\",\"our::Own\"]",
       {on, cast + "dtype = \"bf16\" (file)",
        modules + "[\"torch.nn.Linear\",\"torch.nn.Conv1d\",\"my.Own\",\"our::Own\"] (file)",
        "communication_data_type = \"bf16\" (file) for every parameter, whatever "
        "torch_autocast.dtype is"},
       [casts](PrecisionConfig& precision) {
         casts(DataType::Bf16)(precision);
         precision.communication = DataType::Bf16;
         precision.autocast.lower_precision_safe_modules = {"torch.nn.Linear", "torch.nn.Conv1d",
                                                            "my.Own", "our::Own"};
       }},
      {"torch_autocast.lower_precision_safe_modules=[\"Linear\"]",
       {without_effect_line(cast + "lower_precision_safe_modules", "[\"Linear\"]", "it is off")},
       [](PrecisionConfig&) {}}};
}

// The sections of apex, by level.
std::vector<TypesRead> of_apex() {
  const std::string amp = "amp.", on = amp + "enabled = true (file)",
                    level = amp + "opt_level = ", as_amp = "\" (derived) as amp.opt_level says",
                    decides = " opt_level decides it",
                    ceiling = amp +
                              "max_loss_scale = 16777216.0 (default) the scale has no "
                              "ceiling",
                    scale = amp + "loss_scale = ", scaler = "torch's gradient scaler",
                    skipped = "bf16.check_grad_overflow = true (default) " + kSkipped;
  const auto decided = [&](const std::string& patch, const std::string& masters,
                           const std::string& norms) {
    return std::vector<std::string>{
        amp + "patch_torch_functions = " + patch + " (default)" + decides,
        amp + "master_weights = " + masters + " (default)" + decides,
        amp + "keep_batchnorm_fp32 = " + norms + " (default)" + decides, on, ceiling};
  };
  const auto with = [](std::vector<std::string> lines, const std::vector<std::string>& more) {
    lines.insert(lines.end(), more.begin(), more.end());
    return lines;
  };
  return {{"amp.enabled=true amp.opt_level=\"O0\"",
           with(decided("false", "false", "true"),
                {level + "\"O0\" (file) fp32", scale + "1.0 (derived) fp32 needs no loss scale",
                 kParamLine + "fp32" + as_amp}),
           [](PrecisionConfig&) {}},
          {"amp.enabled=true",
           with(decided("true", "null", "null"),
                {level + "\"O1\" (derived) as torch_autocast in float16",
                 scale + "\"dynamic\" (default) " + scaler, kParamLine + "fp32" + as_amp, skipped}),
           [](PrecisionConfig& precision) {
             precision.autocast.enabled = true;
             precision.autocast.dtype = DataType::Fp16;
             precision.loss_scale = {.policy = ScalePolicy::GradScaler,
                                     .initial_scale_power = 16,
                                     .loss_scale_window = 2000};
           }},
          {"amp.enabled=true amp.opt_level=\"O2\" amp.loss_scale=\"256\"",
           with(decided("false", "true", "false"),
                {level + "\"O2\" (file) as fp16, batch norms too, with fp32 master weights",
                 scale + "256.0 (file)", kParamLine + "fp16" + as_amp,
                 kWindowLine + "fp16" + kAsParam, skipped}),
           [](PrecisionConfig& precision) {
             precision.param = precision.accumulate = DataType::Fp16;
             precision.loss_scale = {.policy = ScalePolicy::Static, .static_scale = 256};
           }},
          {"amp.opt_level=\"O2\" amp.max_loss_scale=3",
           {without_effect_line(amp + "opt_level", "\"O2\"", "it is off"),
            without_effect_line(amp + "max_loss_scale", "3.0", "it is off")},
           [](PrecisionConfig&) {}}};
}

void check_types(Play& play, const std::vector<TypesRead>& all) {
  for (const auto& one : all) {
    const auto make = one.make;
    check_told(play, usual_keys("SGD"),
               {one.keys, one.lines, [make](EngineConfig& config) { make(config.precision); }});
  }
}

void types_one_by_one(Play& play) {
  if (play.group()) {
    check_types(play, of_fp16());
    check_types(play, of_fp16_that_is_off());
    check_types(play, of_bf16());
    check_types(play, of_casts());
    check_types(play, of_apex());
  }
  train_along(play);
}

}  // namespace

std::vector<Case> read_types() {
  return {case_beside({.section = "15",
                       .name = "types_one_by_one",
                       .sentence = "so is every key of types and loss scales, by its old names too",
                       .fault = "another line is expected",
                       .program = types_one_by_one},
                      Plays::Once)};
}

}  // namespace equigrad::conformance::contract
