#include "engine/config/precision.hpp"

#include <algorithm>
#include <cctype>

#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

const std::string kFp16 = "fp16.";
const std::string kAutocast = "torch_autocast.";
const std::string kAccumulate = "data_types.grad_accum_dtype";

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The names that DeepSpeed takes for a type.
std::optional<DataType> type_named(const std::string& name) {
  static const std::map<std::string, DataType> types{
      {"fp32", DataType::Fp32},           {"float32", DataType::Fp32},
      {"float", DataType::Fp32},          {"torch.float32", DataType::Fp32},
      {"bf16", DataType::Bf16},           {"bfloat16", DataType::Bf16},
      {"torch.bfloat16", DataType::Bf16}, {"fp16", DataType::Fp16},
      {"float16", DataType::Fp16},        {"half", DataType::Fp16},
      {"torch.float16", DataType::Fp16}};
  const auto found = types.find(lower(name));
  return found == types.end() ? std::nullopt : std::optional(found->second);
}

// Reads one file into `config`, noting problems in `reader` and derivations in `notes`.
struct Parse {
  ConfigReader& reader;
  EngineConfig& config;
  Notes& notes;

  void modes();
  void fp16();
  bool fp16_masters();
  void bf16(const std::string& section);
  void autocast();
  void modules(AutocastConfig& autocast);
  void data_types();

  std::optional<DataType> data_type(const std::string& path);
};

// Nothing if absent or wrong.
std::optional<DataType> Parse::data_type(const std::string& path) {
  if (!reader.has(path)) return std::nullopt;
  const std::string name = reader.text(path, "fp32");
  if (reader.is_bad(path)) return std::nullopt;
  const std::optional<DataType> type = type_named(name);
  if (!type)
    reader.problem(path, R"(expected "fp32", "bf16" or "fp16", got ")" + name +
                             "\". Use one of "
                             "the three.");
  return type;
}

bool Parse::fp16_masters() {
  const std::string documented = kFp16 + "fp16_master_weights_and_grads";
  const std::string announced = kFp16 + "fp16_master_weights_and_gradients";
  const bool by_grads = reader.boolean(documented, false);
  const bool by_gradients = reader.boolean(announced, by_grads);
  if (!reader.has(announced)) return by_grads;
  if (!reader.has(documented))
    notes[documented] = "as fp16_master_weights_and_gradients, which is another spelling of it";
  else if (by_grads != by_gradients)
    reader.problem(announced, "expected what fp16_master_weights_and_grads says, got " +
                                  shown(by_gradients) + " and not " + shown(by_grads) +
                                  ". Drop one of the two spellings.");
  return by_gradients;
}

void Parse::fp16() {
  LossScaleConfig scale;
  scale.policy = LossScaleConfig::Policy::DeepSpeed;
  const bool enabled = reader.boolean(kFp16 + "enabled", false);
  const bool casts_inputs = reader.boolean(kFp16 + "auto_cast", false);
  const double fixed = reader.number(kFp16 + "loss_scale", 0.0);
  scale.initial_scale_power =
      reader.integer(kFp16 + "initial_scale_power", scale.initial_scale_power);
  scale.loss_scale_window = reader.integer(kFp16 + "loss_scale_window", scale.loss_scale_window);
  scale.hysteresis = reader.integer(kFp16 + "hysteresis", scale.hysteresis);
  scale.consecutive_hysteresis =
      reader.boolean(kFp16 + "consecutive_hysteresis", scale.consecutive_hysteresis);
  scale.min_loss_scale = reader.number(kFp16 + "min_loss_scale", scale.min_loss_scale);
  const bool masters = fp16_masters();
  if (!enabled) return;
  if (casts_inputs)
    reader.problem(kFp16 + "auto_cast",
                   "expected false, got true, which is not supported by this version. Cast the "
                   "inputs to fp16 where the model is called.");
  if (fixed != 0.0) {
    const std::string wrong = problem_of_scale(fixed);
    if (!wrong.empty())
      reader.problem(kFp16 + "loss_scale", wrong + " 0 stands for a dynamic scale.");
    scale = {};
    scale.policy = LossScaleConfig::Policy::Static;
    if (wrong.empty()) scale.static_scale = fixed;
  }
  config.precision.param = DataType::Fp16;
  config.precision.loss_scale = scale;
  if (masters) config.precision.master = DataType::Fp16;
}

void Parse::bf16(const std::string& section) {
  PrecisionConfig& precision = config.precision;
  const bool enabled = reader.boolean(section + "enabled", false);
  const bool masters = reader.boolean(section + "bf16_master_weights_and_grads", false);
  const bool states = reader.boolean(section + "bf16_optimizer_states", false);
  const bool skips = reader.boolean(section + "check_grad_overflow", true);
  if (!enabled) return;
  precision.param = DataType::Bf16;
  precision.check_grad_overflow = skips;
  if (masters) precision.master = DataType::Bf16;
  if (states) precision.optimizer_state = DataType::Bf16;
}

void Parse::modes() {
  fp16();
  const bool has_old_name = reader.has("bfloat16");
  if (has_old_name && reader.has("bf16"))
    reader.problem("bfloat16",
                   "expected it or \"bf16\", got both. Drop it; it is bf16's old name.");
  else if (is_on(reader, kFp16 + "enabled") &&
           is_on(reader, has_old_name ? "bfloat16.enabled" : "bf16.enabled"))
    reader.problem("bf16.enabled", "expected bf16 or fp16, got both. Drop one of the sections.");
  else
    bf16(has_old_name ? "bfloat16." : "bf16.");
}

void Parse::modules(AutocastConfig& autocast) {
  const std::string path = kAutocast + "lower_precision_safe_modules";
  if (!reader.has(path)) return;
  const Json& given = *reader.find(path);
  if (!given.is_array() ||
      !std::all_of(given.begin(), given.end(), [](const Json& one) { return one.is_string(); })) {
    reader.problem(path, "expected a list of class names, got " + shown(given) +
                             R"(. Write ["torch.nn.Linear"].)");
    return;
  }
  autocast.lower_precision_safe_modules.clear();
  for (const Json& one : given)
    autocast.lower_precision_safe_modules.push_back(module_class(one.get<std::string>()));
}

void Parse::autocast() {
  AutocastConfig autocast;
  PrecisionConfig& precision = config.precision;
  const std::string path = kAutocast + "dtype";
  autocast.enabled = reader.boolean(kAutocast + "enabled", false);
  const std::optional<DataType> type = data_type(path);
  modules(autocast);
  if (!autocast.enabled) return;
  if (type && *type == DataType::Fp32)
    reader.problem(path, "expected \"bfloat16\" or \"float16\", got " + shown(*reader.find(path)) +
                             ". Use one of the two.");
  else if (type)
    autocast.dtype = *type;
  else if (precision.param != DataType::Fp32)
    autocast.dtype = precision.param;
  if (!reader.has(path))
    notes[path] = precision.param == DataType::Fp32
                      ? "DeepSpeed leaves it to torch, which chooses float16 on a GPU"
                      : "the parameters' type";
  precision.autocast = autocast;
  if (precision.param == DataType::Fp32 && autocast.dtype == DataType::Fp16)
    precision.loss_scale = grad_scaler();
}

void Parse::data_types() {
  PrecisionConfig& precision = config.precision;
  const std::string path = "data_types.param_dtype";
  const bool is_amp = is_on(reader, "amp.enabled");
  notes[path] = is_amp ? "as amp.opt_level says" : "as bf16.enabled and fp16.enabled say";
  if (const std::optional<DataType> type = data_type(path); type && *type != precision.param)
    reader.problem(path, "expected the type that \"bf16\", \"fp16\" and \"amp\" choose, " +
                             std::string(name_of(precision.param)) + ", got " +
                             shown(*reader.find(path)) + ". Set \"" +
                             (*type == DataType::Fp16 ? "fp16" : "bf16") +
                             "\": {\"enabled\": ...} instead.");
  const bool has_masters = precision.master != DataType::Fp32;
  const bool is_exact = config.reduction == ReductionOrder::Exact;
  const DataType own = has_masters ? precision.master : precision.param;
  precision.accumulate = data_type(kAccumulate).value_or(is_exact ? DataType::Fp32 : own);
  if (!reader.has(kAccumulate))
    notes[kAccumulate] = is_exact      ? "what an exact sum is rounded to"
                         : has_masters ? "the master weights' type"
                                       : "the parameters' type";
  precision.communication = data_type("communication_data_type");
  if (precision.communication && precision.autocast.enabled)
    notes["communication_data_type"] = "for every parameter, whatever torch_autocast.dtype is";
}

const char* const kOff = "it is off";

void add_fp16(const LossScaleConfig& scale, SettingList& list) {
  const bool enabled = is_on(list.reader(), kFp16 + "enabled");
  const std::string why = enabled ? "" : kOff;
  const bool is_static = enabled && scale.policy == LossScaleConfig::Policy::Static;
  const std::string why_not_dynamic = is_static ? "loss_scale is static" : why;
  list.add_as_given(kFp16 + "enabled", false);
  list.add_as_given(kFp16 + "auto_cast", false, why);
  list.add_as_given(kFp16 + "loss_scale", 0.0, why, "dynamic");
  list.add_as_given(kFp16 + "initial_scale_power", 16, why_not_dynamic);
  list.add_as_given(kFp16 + "loss_scale_window", 1000, why_not_dynamic);
  list.add_as_given(kFp16 + "hysteresis", 2, why_not_dynamic);
  list.add_as_given(kFp16 + "consecutive_hysteresis", false, why_not_dynamic);
  list.add_as_given(kFp16 + "min_loss_scale", 1.0, why_not_dynamic);
  const std::string announced = kFp16 + "fp16_master_weights_and_gradients";
  const bool is_announced = list.reader().has(announced);
  const bool by_announced = is_announced && is_on(list.reader(), announced);
  list.add_as_given(kFp16 + "fp16_master_weights_and_grads", by_announced, why);
  if (is_announced) list.add_as_given(announced, false, why);
}

void add_bf16(const PrecisionConfig& precision, SettingList& list) {
  const std::string section = list.reader().has("bfloat16") ? "bfloat16." : "bf16.";
  const bool enabled = is_on(list.reader(), section + "enabled");
  const std::string why = enabled ? "" : kOff;
  const bool scaled = precision.loss_scale.policy != LossScaleConfig::Policy::None;
  list.add_as_given(section + "enabled", false);
  list.add_as_given(section + "check_grad_overflow", true,
                    enabled  ? ""
                    : scaled ? "a step that overflows is always skipped"
                             : "fp32 always throws");
  list.add_as_given(section + "bf16_master_weights_and_grads", false, why);
  list.add_as_given(section + "bf16_optimizer_states", false, why);
}

}  // namespace

bool is_on(const ConfigReader& reader, const std::string& path) {
  const Json* value = reader.find(path);
  return value != nullptr && *value == Json(true);
}

const char* name_of(DataType type) {
  switch (type) {
    case DataType::Fp32:
      return "fp32";
    case DataType::Bf16:
      return "bf16";
    case DataType::Fp16:
      return "fp16";
  }
  return "";
}

LossScaleConfig grad_scaler() {
  LossScaleConfig scale;
  scale.policy = LossScaleConfig::Policy::GradScaler;
  scale.initial_scale_power = 16;
  scale.loss_scale_window = 2000;
  return scale;
}

void read_precision(ConfigReader& reader, Notes& notes, EngineConfig& config) {
  Parse parse{reader, config, notes};
  parse.modes();
  parse.autocast();
  read_amp(reader, notes, config);
  parse.data_types();
}

void add_precision(const EngineConfig& config, SettingList& list) {
  const PrecisionConfig& precision = config.precision;
  add_fp16(precision.loss_scale, list);
  add_bf16(precision, list);
  const AutocastConfig& autocast = precision.autocast;
  const std::string modules = kAutocast + "lower_precision_safe_modules";
  list.add_as_given(kAutocast + "enabled", false);
  if (is_on(list.reader(), kAutocast + "enabled")) {
    list.add(kAutocast + "dtype", name_of(autocast.dtype));
    list.add(modules, autocast.lower_precision_safe_modules);
  } else {
    list.add_as_given(kAutocast + "dtype", name_of(AutocastConfig{}.dtype), kOff);
    list.add_as_given(modules, AutocastConfig{}.lower_precision_safe_modules, kOff);
  }
  list.add("data_types.param_dtype", name_of(precision.param));
  list.add(kAccumulate, name_of(precision.accumulate));
  list.add("communication_data_type",
           precision.communication ? Json(name_of(*precision.communication)) : Json(),
           "gradients are sent in the type they have");
}

}  // namespace equigrad
