// Types: what parameters, masters, state, the window and collectives have, and the loss scale.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

using Types = PrecisionConfig;
using Autocast = AutocastConfig;
using Scale = LossScaleConfig;
using Policy = Scale::Policy;

constexpr int kMostPower = 126;  // 2^126, and one over it, are normal numbers of fp32

template <auto... kMembers>
constexpr Field usual = default_of<&EngineConfig::precision, kMembers...>;
template <auto kMember>
constexpr Field usual_scale = usual<&Types::loss_scale, kMember>;
template <auto kMember>
constexpr Field usual_cast = usual<&Types::autocast, kMember>;

constexpr Values kDataType = of_type(ValueType::DataType);

constexpr const char* kAddedWhenReady = "gradients are always added as they become ready";
constexpr const char* kBothSpellings = "Master weights and gradients in fp16.";
constexpr const char* kMasters = "Master weights and gradients in bf16.";
constexpr const char* kMastersHere =
    "Needs stage 1, 2 or 3, and bf16 states or an offloaded optimizer.";
constexpr const char* kOldName = "The old name of bf16's key.";

constexpr Row kRows[] = {
    section("fp16", "Parameters and gradients in fp16."),
    key(".enabled", boolean(), "false", "Whether it is on."),
    key(".auto_cast", boolean(), "false", "Casts the model's inputs.",
        "true is refused where fp16 is on: cast them where the model is called."),
    key(".loss_scale", number(), "0.0", "A static loss scale; 0 is a dynamic one.",
        "A power of two.")
        .noting("dynamic"),
    key(".initial_scale_power",
        {.type = ValueType::Whole, .least = 0, .most = kMostPower, .remedy = "Write 16."},
        usual_scale<&Scale::initial_scale_power>, "A dynamic scale begins with 2 to this power."),
    key(".loss_scale_window", at_least(1), usual_scale<&Scale::loss_scale_window>,
        "Steps without an overflow before the scale doubles."),
    key(".hysteresis", at_least(1), usual_scale<&Scale::hysteresis>,
        "Overflows before the scale halves."),
    key(".consecutive_hysteresis", boolean(), usual_scale<&Scale::consecutive_hysteresis>,
        "A step without an overflow fills hysteresis up again."),
    key(".min_loss_scale", number(), usual_scale<&Scale::min_loss_scale>,
        "The least that a dynamic scale shrinks to.",
        "A power of two of at most 2^initial_scale_power."),
    key(".fp16_master_weights_and_grads", boolean(), "false", kBothSpellings),
    key(".fp16_master_weights_and_gradients", boolean(), "false", kBothSpellings,
        "Another spelling of fp16_master_weights_and_grads."),
    section("bf16", "Parameters and gradients in bf16."),
    key(".enabled", boolean(), "false", "Whether it is on."),
    key(".check_grad_overflow", boolean(), usual<&Types::check_grad_overflow>,
        "A step whose gradients overflow is skipped."),
    no_effect(".immediate_grad_update", "Gradients are added as they become ready.",
              kAddedWhenReady),
    key(".bf16_master_weights_and_grads", boolean(), "false", kMasters, kMastersHere),
    key(".bf16_optimizer_states", boolean(), "false", "Optimizer state in bf16.",
        "Needs bf16_master_weights_and_grads."),
    section("bfloat16", "The old name of bf16."),
    key(".enabled", boolean(), "false", kOldName),
    key(".check_grad_overflow", boolean(), usual<&Types::check_grad_overflow>, kOldName),
    no_effect(".immediate_grad_update", kOldName, kAddedWhenReady),
    key(".bf16_master_weights_and_grads", boolean(), "false", kOldName),
    key(".bf16_optimizer_states", boolean(), "false", kOldName),
    section("torch_autocast", "Operators choose the type that they compute in."),
    key(".enabled", boolean(), usual_cast<&Autocast::enabled>, "Whether it is on."),
    key(".dtype", kDataType, usual_cast<&Autocast::dtype>, "The smaller type, bf16 or fp16.",
        "The parameters' type by default; bf16 for fp32, which DeepSpeed leaves to torch."),
    key(".lower_precision_safe_modules", of_type(ValueType::Classes),
        usual_cast<&Autocast::lower_precision_safe_modules>,
        "Classes of modules whose parameters and gradients are sent in that type.",
        "Modules of torch.nn by their name, others by their full name."),
    section("data_types", "Types beside those of the parameters."),
    key(".param_dtype", kDataType, "null", "The parameters' type.",
        "Must say what bf16, fp16 and amp say."),
    key(".grad_accum_dtype", kDataType, "null", "The type that gradients are added up in.",
        "By default the master weights', else the parameters'; fp32 where sums are exact."),
    unsupported(".buffer_dtype", "The type of the model's buffers.", "[]",
                "Buffers keep the model's own types."),
    key("communication_data_type", kDataType, "null", "The type that gradients are sent in.")
        .noting("gradients are sent in the type they have"),
    unsupported("seq_parallel_communication_data_type",
                "The type that sequence parallelism reduces in.", "[\"fp32\"]"),
};

const std::string kFp16 = "fp16.";
const std::string kBf16 = "bf16.";
const std::string kAutocast = "torch_autocast.";
const std::string kAccumulate = "data_types.grad_accum_dtype";
const std::string kTorch = "torch.nn.";

DataType type_of(const Json& name) {
  DataType type{};
  assign(type, name);
  return type;
}

// The modules of torch::nn that hold parameters.
const std::vector<std::string>& torch_modules() {
  static std::istringstream words(
      "Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d "
      "Embedding EmbeddingBag LayerNorm GroupNorm BatchNorm1d BatchNorm2d BatchNorm3d "
      "InstanceNorm1d InstanceNorm2d InstanceNorm3d RNN LSTM GRU RNNCell LSTMCell GRUCell "
      "MultiheadAttention Transformer TransformerEncoder TransformerDecoder "
      "TransformerEncoderLayer TransformerDecoderLayer PReLU");
  static const std::vector<std::string> names{std::istream_iterator<std::string>(words), {}};
  return names;
}

// The full name of a module class (torch.nn.Linear for Linear and for
// torch.nn.modules.linear.Linear); a class of another package keeps its name.
std::string module_class(const std::string& written) {
  const std::size_t dot = written.rfind('.');
  const bool is_short = dot == std::string::npos && written.find("::") == std::string::npos;
  if (is_short) return kTorch + written;
  // Where torch defines them: torch.nn.modules.linear.Linear.
  return written.rfind("torch.nn.modules.", 0) == 0 ? kTorch + written.substr(dot + 1) : written;
}

bool read_fp16_masters(Reading& reading) {
  const std::string documented = kFp16 + "fp16_master_weights_and_grads";
  const std::string announced = kFp16 + "fp16_master_weights_and_gradients";
  const bool by_grads = reading.take(documented), by_gradients = reading.take(announced);
  if (!reading.has(announced)) {
    reading.note(announced).is_hidden = true;
    return by_grads;
  }
  if (!reading.has(documented)) {
    reading.note(documented).shown = by_gradients;
    reading.note(documented).derived =
        "as fp16_master_weights_and_gradients, which is another spelling of it";
  } else if (by_grads != by_gradients) {
    reading.reader.problem(announced, "expected what fp16_master_weights_and_grads says, got " +
                                          shown(by_gradients) + " and not " + shown(by_grads) +
                                          ". Drop one of the two spellings.");
  }
  return by_gradients;
}

LossScaleConfig read_dynamic_scale(Reading& reading) {
  return {.policy = Policy::DeepSpeed,
          .initial_scale_power = reading.take(kFp16 + "initial_scale_power"),
          .loss_scale_window = reading.take(kFp16 + "loss_scale_window"),
          .hysteresis = reading.take(kFp16 + "hysteresis"),
          .consecutive_hysteresis = reading.take(kFp16 + "consecutive_hysteresis"),
          .min_loss_scale = reading.take(kFp16 + "min_loss_scale")};
}

void read_fp16(Reading& reading) {
  PrecisionConfig& precision = reading.config.precision;
  const bool enabled = reading.take(kFp16 + "enabled");
  const bool casts_inputs = reading.take(kFp16 + "auto_cast");
  const double fixed = reading.take(kFp16 + "loss_scale");
  const LossScaleConfig dynamic = read_dynamic_scale(reading);
  const bool masters = read_fp16_masters(reading);
  if (!enabled) return;
  if (casts_inputs)
    reading.reader.problem(kFp16 + "auto_cast",
                           "expected false, got true, which is not supported by this version. "
                           "Cast the inputs to fp16 where the model is called.");
  precision.param = DataType::Fp16;
  precision.loss_scale = dynamic;
  if (masters) precision.master = DataType::Fp16;
  if (fixed == 0.0) return;
  precision.loss_scale =
      static_scale(fixed, kFp16 + "loss_scale", " 0 stands for a dynamic scale.", reading.reader);
  for (const char* key : {"initial_scale_power", "loss_scale_window", "hysteresis",
                          "consecutive_hysteresis", "min_loss_scale"})
    reading.note(kFp16 + key).without_effect = "loss_scale is static";
}

// `is_meant`: of two names of the section, this one is in use.
void read_bf16(const std::string& section, bool is_meant, Reading& reading) {
  PrecisionConfig& precision = reading.config.precision;
  const bool enabled = reading.take(section + "enabled");
  const bool masters = reading.take(section + "bf16_master_weights_and_grads");
  const bool states = reading.take(section + "bf16_optimizer_states");
  const bool skips = reading.take(section + "check_grad_overflow");
  if (!is_meant)
    for (const char* key : {"enabled", "bf16_master_weights_and_grads", "bf16_optimizer_states",
                            "check_grad_overflow"})
      reading.note(section + key).is_hidden = true;
  if (!enabled) reading.note(section + "check_grad_overflow").without_effect = "fp32 always throws";
  if (!enabled || !is_meant) return;
  precision.param = DataType::Bf16;
  precision.check_grad_overflow = skips;
  if (masters) precision.master = DataType::Bf16;
  if (states) precision.optimizer_state = DataType::Bf16;
}

void read_modes(Reading& reading) {
  read_fp16(reading);
  const bool has_old_name = reading.has("bfloat16");
  bool is_one = false;
  if (has_old_name && reading.has("bf16"))
    reading.reader.problem("bfloat16",
                           "expected it or \"bf16\", got both. Drop it; it is bf16's old name.");
  else if (reading.is_on(kFp16 + "enabled") &&
           reading.is_on(has_old_name ? "bfloat16.enabled" : "bf16.enabled"))
    reading.reader.problem("bf16.enabled",
                           "expected bf16 or fp16, got both. Drop one of the sections.");
  else
    is_one = true;
  read_bf16("bf16.", is_one && !has_old_name, reading);
  read_bf16("bfloat16.", is_one && has_old_name, reading);
}

void read_autocast(Reading& reading) {
  PrecisionConfig& precision = reading.config.precision;
  const std::string path = kAutocast + "dtype",
                    modules = kAutocast + "lower_precision_safe_modules";
  AutocastConfig autocast;
  autocast.enabled = reading.take(kAutocast + "enabled");
  const DataType type = type_of(reading.take(path));
  const Json classes = reading.take(modules);
  if (!autocast.enabled) return;
  const bool is_fp32 = precision.param == DataType::Fp32;
  if (reading.has(path)) {
    if (type == DataType::Fp32)
      reading.reader.problem(path, "expected \"bfloat16\" or \"float16\", got " +
                                       shown(*reading.reader.find(path)) + ". Use one of the two.");
    else
      autocast.dtype = type;
  } else {
    if (!is_fp32) autocast.dtype = precision.param;
    reading.note(path).derived =
        is_fp32 ? "DeepSpeed leaves it to torch, which chooses float16 on a GPU"
                : "the parameters' type";
  }
  autocast.lower_precision_safe_modules.clear();
  for (const Json& one : classes)
    autocast.lower_precision_safe_modules.push_back(module_class(one.get<std::string>()));
  reading.note(path).shown = name_of(autocast.dtype);
  reading.note(modules).shown = autocast.lower_precision_safe_modules;
  precision.autocast = autocast;
  if (is_fp32 && autocast.dtype == DataType::Fp16) precision.loss_scale = grad_scaler();
}

void read_param_type(Reading& reading) {
  const DataType param = reading.config.precision.param;
  const std::string path = "data_types.param_dtype";
  const Json given = reading.take(path);
  reading.note(path).derived = reading.is_on("amp.enabled")
                                   ? "as amp.opt_level says"
                                   : "as bf16.enabled and fp16.enabled say";
  reading.note(path).shown = name_of(param);
  if (!given.is_null() && given != name_of(param))
    reading.reader.problem(path, "expected the type that \"bf16\", \"fp16\" and \"amp\" choose, " +
                                     std::string(name_of(param)) + ", got " +
                                     shown(*reading.reader.find(path)) + ". Set \"" +
                                     (given == "fp16" ? "fp16" : "bf16") +
                                     "\": {\"enabled\": ...} instead.");
}

void read_data_types(Reading& reading) {
  PrecisionConfig& precision = reading.config.precision;
  read_param_type(reading);
  const bool has_masters = precision.master != DataType::Fp32;
  const bool is_exact = reading.config.reduction == ReductionOrder::Exact;
  const Json window = reading.take(kAccumulate);
  precision.accumulate = !window.is_null() ? type_of(window)
                         : is_exact        ? DataType::Fp32
                         : has_masters     ? precision.master
                                           : precision.param;
  if (!reading.has(kAccumulate))
    reading.note(kAccumulate).derived = is_exact      ? "what an exact sum is rounded to"
                                        : has_masters ? "the master weights' type"
                                                      : "the parameters' type";
  reading.note(kAccumulate).shown = name_of(precision.accumulate);
  const Json sent = reading.take("communication_data_type");
  if (sent.is_null()) return;
  precision.communication = type_of(sent);
  if (precision.autocast.enabled)
    reading.note("communication_data_type").derived =
        "for every parameter, whatever torch_autocast.dtype is";
}

void read(Reading& reading) {
  read_modes(reading);
  read_autocast(reading);
  read_data_types(reading);
  if (reading.config.precision.loss_scale.policy == Policy::None) return;
  for (const char* section : {"bf16.", "bfloat16."})
    if (!reading.is_on(section + std::string("enabled")))
      reading.note(section + std::string("check_grad_overflow")).without_effect =
          "a step that overflows is always skipped";
}

// Empty, or why a loss scale of `value` would change more than exponents.
std::string problem_of_scale(double value) {
  const std::string most = "2^" + std::to_string(kMostPower);
  if (!std::isfinite(value) || value <= 0.0 || value < std::ldexp(1.0, -kMostPower) ||
      value > std::ldexp(1.0, kMostPower))
    return "expected a power of two from 2^-" + std::to_string(kMostPower) + " to " + most +
           ", got " + text_of(value) + ". Write 128.";
  const double below = std::ldexp(1.0, std::ilogb(value));
  if (below == value) return "";
  return "expected a power of two, which changes exponents only, got " + text_of(value) +
         ". Write " + text_of(below) + " or " + text_of(2.0 * below) + ".";
}

void check_loss_scale(const PrecisionConfig& precision, Checks& checks) {
  const LossScaleConfig& scale = precision.loss_scale;
  const std::string path = kFp16 + "loss_scale";
  const bool casts = precision.param == DataType::Fp32 && precision.autocast.enabled;
  const bool is_fp16 = (casts ? precision.autocast.dtype : precision.param) == DataType::Fp16;
  if (is_fp16 && scale.policy == Policy::None)
    checks.problem(path, "expected a static or dynamic loss scale for fp16, got none. Choose one.");
  if (!is_fp16 && scale.policy != Policy::None)
    checks.problem(path, "expected no loss scale without fp16, got one. Drop it, or enable fp16.");
  if (scale.policy == Policy::Static) checks.problem(path, problem_of_scale(scale.static_scale));
  if (scale.policy != Policy::DeepSpeed && scale.policy != Policy::GradScaler) return;
  checks.range(kFp16 + "initial_scale_power", scale.initial_scale_power);
  checks.range(kFp16 + "loss_scale_window", scale.loss_scale_window);
  if (scale.policy == Policy::GradScaler) return;
  checks.range(kFp16 + "hysteresis", scale.hysteresis);
  const std::string wrong = problem_of_scale(scale.min_loss_scale);
  if (!wrong.empty())
    checks.problem(kFp16 + "min_loss_scale", wrong);
  else if (std::ilogb(scale.min_loss_scale) > scale.initial_scale_power)
    checks.problem(kFp16 + "min_loss_scale",
                   "expected at most 2^initial_scale_power, got " + text_of(scale.min_loss_scale) +
                       " and a power of " + std::to_string(scale.initial_scale_power) +
                       ". Lower it, or raise the power.");
}

// The key that asks for 16-bit masters of parameters of this type.
std::string masters_key(DataType param) {
  return param == DataType::Fp16 ? kFp16 + "fp16_master_weights_and_grads"
                                 : kBf16 + "bf16_master_weights_and_grads";
}

void check_masters(const EngineConfig& config, Checks& checks) {
  const PrecisionConfig& precision = config.precision;
  const std::string path = masters_key(precision.master);
  const std::string states = kBf16 + "bf16_optimizer_states";
  if (precision.master != DataType::Fp32 && precision.master != precision.param) {
    checks.problem(path, "expected master weights in fp32 or in the type of the parameters, " +
                             std::string(name_of(precision.param)) + ", got " +
                             name_of(precision.master) + ". Choose one of the two.");
    return;
  }
  if (precision.optimizer_state == DataType::Fp16)
    checks.problem(kFp16 + "enabled",
                   "expected optimizer state in fp32 or bf16, got fp16. Keep it in fp32.");
  if (precision.optimizer_state == DataType::Bf16 && precision.master != DataType::Bf16)
    checks.problem(states,
                   "expected false without bf16_master_weights_and_grads, got true. Set "
                   "bf16_master_weights_and_grads to true, or drop the key.");
  if (precision.master != DataType::Bf16) return;
  if (config.zero.stage < 1)
    checks.problem(path, "expected ZeRO stage 1, 2 or 3 with bf16 master weights, got stage " +
                             std::to_string(config.zero.stage) +
                             ". Set zero_optimization.stage, or drop the key.");
  if (precision.optimizer_state == DataType::Fp32 && !config.offload_optimizer.to_cpu)
    checks.problem(path,
                   "expected bf16_optimizer_states, or zero_optimization.offload_optimizer with "
                   "device \"cpu\", beside bf16 master weights, got neither. Add one of them.");
}

void check_window(const EngineConfig& config, Checks& checks) {
  const PrecisionConfig& precision = config.precision;
  const std::string path = "data_types.grad_accum_dtype";
  const std::string param = name_of(precision.param), got = name_of(precision.accumulate);
  if (config.reduction == ReductionOrder::Exact) {
    if (precision.accumulate != DataType::Fp32)
      checks.problem(
          path, "expected fp32 with \"reduction\": \"exact\", whose sums are rounded once, got \"" +
                    got + "\". Drop one of the keys.");
  } else if (precision.master != DataType::Fp32 && precision.master == precision.param) {
    if (precision.accumulate != precision.master)
      checks.problem(path,
                     "expected " + std::string(name_of(precision.master)) + " with " +
                         masters_key(precision.master) + ", got \"" + got +
                         "\". Gradients have the master weights' type; drop one of the keys.");
  } else if (precision.accumulate != DataType::Fp32 && precision.accumulate != precision.param) {
    const bool is_fp32 = precision.param == DataType::Fp32;
    checks.problem(path, "expected fp32 " + (is_fp32 ? "" : "or " + param + " ") + "for " + param +
                             " parameters, got \"" + got + "\". " +
                             (is_fp32 ? "Enable " + got + ", or drop the key." : "Drop the key."));
  }
}

// Empty, or why no module can have this full name.
std::string problem_of_module_class(const std::string& name) {
  const std::vector<std::string>& known = torch_modules();
  const bool is_full = name.find('.') != std::string::npos || name.find("::") != std::string::npos;
  const bool is_torch = name.rfind(kTorch, 0) == 0;
  if (is_full && !is_torch) return "";  // a class of the user, checked against the model
  const std::string last = is_torch ? name.substr(kTorch.size()) : name;
  if (is_torch && std::find(known.begin(), known.end(), last) != known.end()) return "";
  const std::string nearest = nearest_name(last, known);
  return "expected modules of torch.nn that hold parameters, or full names of other classes, got "
         "\"" +
         name + "\"." +
         (nearest.empty() ? " Write torch.nn.Linear, or package.Class."
                          : " Did you mean \"" + kTorch + nearest + "\"?");
}

void check_autocast(const PrecisionConfig& precision, Checks& checks) {
  const AutocastConfig& autocast = precision.autocast;
  const std::string path = "torch_autocast.dtype";
  if (!autocast.enabled) return;
  if (autocast.dtype == DataType::Fp32)
    checks.problem(path, "expected bf16 or fp16, got fp32. Use one of the two.");
  else if (precision.param != DataType::Fp32 && autocast.dtype != precision.param)
    checks.problem(path, "expected the type of the parameters, " +
                             std::string(name_of(precision.param)) + ", got " +
                             name_of(autocast.dtype) + ". Drop the key, or the other section.");
  for (const std::string& name : autocast.lower_precision_safe_modules)
    checks.problem(kAutocast + "lower_precision_safe_modules", problem_of_module_class(name));
}

void check(const EngineConfig& config, Checks& checks) {
  check_loss_scale(config.precision, checks);
  check_masters(config, checks);
  check_window(config, checks);
  check_autocast(config.precision, checks);
}

}  // namespace

LossScaleConfig static_scale(double value, const std::string& path, const char* otherwise,
                             ConfigReader& reader) {
  LossScaleConfig scale{.policy = Policy::Static};
  const std::string wrong = problem_of_scale(value);
  if (wrong.empty())
    scale.static_scale = value;
  else
    reader.problem(path, wrong + otherwise);
  return scale;
}

LossScaleConfig grad_scaler() {
  return {.policy = Policy::GradScaler, .initial_scale_power = 16, .loss_scale_window = 2000};
}

Section precision_section() { return {kRows, read, check}; }

}  // namespace equigrad
