#include <array>
#include <cstdlib>

#include "engine/config/sections/sections.hpp"
#include "engine/config/suggest.hpp"

// The section "amp" of apex (https://nvidia.github.io/apex/amp.html), in terms of the others.
namespace equigrad {
namespace {

const std::string kAmp = "amp.";
const std::string kScale = "amp.loss_scale";
const std::string kLevels[] = {"O0", "O1", "O2"};

// Keys that a level decides: what holds at O0, O1 and O2, where null stands for nothing to say.
struct Decided {
  const char* key;
  std::array<Json, 3> holds;
  const char* reason;
};

const std::array<Decided, 3>& decided_keys() {
  static const std::array<Decided, 3> keys{{
      {"patch_torch_functions", {false, true, false}, "The level decides it."},
      {"master_weights", {false, nullptr, true}, "The level decides it."},
      {"keep_batchnorm_fp32", {true, nullptr, false}, "All parameters have one type here."},
  }};
  return keys;
}

// Nothing: dynamic. As in apex, a number may be in quotes.
std::optional<double> read_scale(ConfigReader& reader, std::optional<double> fallback) {
  if (!reader.has(kScale)) return fallback;
  const Json& given = *reader.find(kScale);
  if (given == Json("dynamic")) return std::nullopt;
  if (given.is_number()) return given.get<double>();
  const std::string text = given.is_string() ? given.get<std::string>() : "";
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0') return value;
  reader.problem(kScale,
                 "expected \"dynamic\" or a number, got " + shown(given) + ". Use one of the two.");
  return fallback;
}

LossScaleConfig scale_of(std::optional<double> scale, ConfigReader& reader) {
  if (!scale) return grad_scaler();
  LossScaleConfig fixed;
  fixed.policy = LossScaleConfig::Policy::Static;
  const std::string wrong = problem_of_scale(*scale);
  if (wrong.empty())
    fixed.static_scale = *scale;
  else
    reader.problem(kScale, wrong + " \"dynamic\" is the default.");
  return fixed;
}

void check_alone(ConfigReader& reader) {
  for (const char* other : {"fp16", "bf16", "bfloat16", "torch_autocast"})
    if (is_on(reader, std::string(other) + ".enabled"))
      reader.problem(kAmp + "enabled", "expected amp or " + std::string(other) +
                                           ", got both. Drop one of the sections.");
}

// The types of every key are checked also where the section is off.
void check_decided(std::optional<std::size_t> level, ConfigReader& reader) {
  for (const Decided& decided : decided_keys()) {
    const std::string path = kAmp + decided.key;
    const bool given = reader.boolean(path, false);
    if (!level || !reader.has(path) || decided.holds[*level] == Json(given)) continue;
    const Json& holds = decided.holds[*level];
    reader.problem(path, "expected " + (holds.is_null() ? "no such key" : shown(holds)) +
                             " with opt_level " + kLevels[*level] + ", got " + shown(Json(given)) +
                             ". " + decided.reason + " Drop the key.");
  }
  const double most = reader.number(kAmp + "max_loss_scale", 0x1p24);
  if (level && most != 0x1p24)
    reader.problem(kAmp + "max_loss_scale",
                   "expected 16777216, apex's default, got " + text_of(most) +
                       ", which is not supported by this version. The scale has no ceiling; drop "
                       "the key.");
}

std::optional<std::size_t> level_named(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kLevels); ++i)
    if (name == kLevels[i]) return i;
  return std::nullopt;
}

// Nothing if it is not one of the three.
std::optional<std::size_t> read_level(ConfigReader& reader) {
  const std::string path = kAmp + "opt_level";
  const std::string level = reader.text(path, "O1");
  const std::optional<std::size_t> found = level_named(level);
  if (found) return found;
  reader.problem(path, "expected \"O0\", \"O1\" or \"O2\", got \"" + level + "\"" +
                           (level == "O3" ? ", which is not supported by this version. Use fp16 "
                                            "with fp16_master_weights_and_grads."
                                          : "." + did_you_mean(level, {"O0", "O1", "O2"})));
  return found;
}

void apply(std::size_t level, ConfigReader& reader, Notes& notes, EngineConfig& config) {
  PrecisionConfig& precision = config.precision;
  const std::optional<double> scale =
      read_scale(reader, level == 0 ? std::optional(1.0) : std::nullopt);
  if (level == 0) {
    notes[kAmp + "opt_level"] = "fp32";
    if (scale != 1.0)
      reader.problem(kScale, "expected 1 with opt_level O0, got " + shown(*reader.find(kScale)) +
                                 ". fp32 needs no loss scale; drop the key.");
    return;
  }
  precision.loss_scale = scale_of(scale, reader);
  if (level == 1) {
    notes[kAmp + "opt_level"] = "as torch_autocast in float16";
    precision.autocast.enabled = true;
    precision.autocast.dtype = DataType::Fp16;
  } else {
    notes[kAmp + "opt_level"] = "as fp16, batch norms too, with fp32 master weights";
    precision.param = DataType::Fp16;
  }
}

}  // namespace

void read_amp(ConfigReader& reader, Notes& notes, EngineConfig& config) {
  const bool enabled = reader.boolean(kAmp + "enabled", false);
  std::optional<std::size_t> level = read_level(reader);
  if (!enabled) level.reset();
  check_decided(level, reader);
  if (!enabled) {
    read_scale(reader, std::nullopt);
    return;
  }
  check_alone(reader);
  if (level && !reader.is_bad(kAmp + "enabled")) apply(*level, reader, notes, config);
  if (config.zero.stage > 0)
    notes[kAmp + "enabled"] = "DeepSpeed refuses it with ZeRO; here opt_level says what it means";
}

void add_amp(const EngineConfig& config, SettingList& list) {
  const bool enabled = is_on(list.reader(), kAmp + "enabled");
  const std::string why = enabled ? "" : "it is off";
  const auto policy = config.precision.loss_scale.policy;
  list.add_as_given(kAmp + "enabled", false);
  list.add_as_given(kAmp + "opt_level", "O1", why);
  const bool scaled = !enabled || policy != LossScaleConfig::Policy::None;
  list.add_as_given(kScale, scaled ? Json("dynamic") : Json(1.0), why,
                    scaled ? "torch's gradient scaler" : "");
  list.add_as_given(kAmp + "max_loss_scale", 0x1p24, enabled ? "the scale has no ceiling" : why);
  const Json* written = list.reader().find(kAmp + "opt_level");
  const auto level = level_named(written == nullptr ? "O1" : written->get<std::string>());
  for (const Decided& decided : decided_keys())
    list.add_as_given(kAmp + decided.key, enabled && level ? decided.holds[*level] : Json(), why,
                      "opt_level decides it");
}

}  // namespace equigrad
