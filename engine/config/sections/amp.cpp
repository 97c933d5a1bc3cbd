// The section "amp" of apex (https://nvidia.github.io/apex/amp.html), in terms of the others.
#include <optional>

#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

constexpr const char* kLevels[] = {"O0", "O1", "O2"};
constexpr const char* kLevel3[] = {"O3"};
constexpr Choice kLevelChoice{.names = kLevels,
                              .refused = kLevel3,
                              .why_refused =
                                  ", which is not supported by this version. Use fp16 with "
                                  "fp16_master_weights_and_grads."};

constexpr const char* kDecides = "opt_level decides it";
constexpr const char* kByLevel = "\"opt_level\" decides it; drop the key.";
constexpr const char* kAgrees = "Must say what opt_level says.";

constexpr Row kRows[] = {
    section("amp", "apex's mixed precision: an older name of torch_autocast or fp16."),
    key(".enabled", boolean(), "false", "Whether it is on.",
        "DeepSpeed refuses it with ZeRO; here opt_level says what it means."),
    key(".opt_level", one_of(kLevelChoice), "\"O1\"", "How much is in fp16.",
        "O0: fp32. O1: as torch_autocast in float16. O2: as fp16, batch norms too, with fp32 "
        "master weights."),
    key(".patch_torch_functions", boolean(), "null", "Casts around operators.", kAgrees)
        .noting(kDecides),
    key(".master_weights", boolean(), "null", "Master weights in fp32.", kAgrees).noting(kDecides),
    key(".keep_batchnorm_fp32", boolean(), "null", "Batch norms stay in fp32.",
        "Must say what opt_level says; all parameters have one type here.")
        .noting(kDecides),
    key(".loss_scale", of_type(ValueType::Scale), "\"dynamic\"", "The loss scale.",
        "A power of two, or torch's gradient scaler. 1 at O0.")
        .noting("torch's gradient scaler"),
    key(".max_loss_scale", number(), "16777216.0", "The most that a dynamic scale grows to.",
        "The scale has no ceiling: apex's default only."),
    unsupported(".min_loss_scale", "The least that a dynamic scale shrinks to.", "[]",
                "The loss scale has no floor; drop the key."),
    unsupported(".cast_model_type", "The type of the model.", "[]", kByLevel),
    unsupported(".cast_batchnorm", "The type of batch norms.", "[]", kByLevel),
    unsupported(".cast_model_outputs", "The type of the model's outputs.", "[]",
                "Cast the outputs where the model is called."),
    unsupported(".num_losses", "How many losses have a scale of their own.", "[1]",
                "All losses share one loss scale."),
    no_effect(".verbosity", "How much apex prints.", "it only changes what apex prints"),
};

const std::string kAmp = "amp.";
const std::string kScale = "amp.loss_scale";
const std::string kMost = "amp.max_loss_scale";

// Keys that a level decides: what holds at O0, O1 and O2, where null stands for nothing to say.
struct Decided {
  const char* key;
  const char* holds[3];  // as JSON
  const char* reason;
};
constexpr Decided kDecidedKeys[] = {
    {"patch_torch_functions", {"false", "true", "false"}, "The level decides it."},
    {"master_weights", {"false", "null", "true"}, "The level decides it."},
    {"keep_batchnorm_fp32", {"true", "null", "false"}, "All parameters have one type here."},
};

// The types of every key are checked also where the section is off.
void read_decided(std::optional<std::size_t> level, Reading& reading) {
  for (const Decided& decided : kDecidedKeys) {
    const std::string path = kAmp + decided.key;
    const Json given = reading.take(path);
    if (!level) continue;
    const Json holds = Json::parse(decided.holds[*level]);
    if (!reading.has(path))
      reading.note(path).shown = holds;
    else if (holds != given)
      reading.reader.problem(path, "expected " + (holds.is_null() ? "no such key" : shown(holds)) +
                                       " with opt_level " + kLevels[*level] + ", got " +
                                       shown(given) + ". " + decided.reason + " Drop the key.");
  }
}

void read_ceiling(bool is_on, Reading& reading) {
  const double most = reading.take(kMost);
  if (!is_on) return;
  reading.note(kMost).without_effect = "the scale has no ceiling";
  if (Json(most) != default_of_row(*schema().find(kMost)))
    reading.reader.problem(kMost, "expected 16777216, apex's default, got " + text_of(most) +
                                      ", which is not supported by this version. The scale has no "
                                      "ceiling; drop the key.");
}

void apply(std::size_t level, const Json& scale, Reading& reading) {
  PrecisionConfig& precision = reading.config.precision;
  const std::string path = kAmp + "opt_level";
  if (level == 0) {
    reading.note(path).derived = "fp32";
    if (reading.reader.is_bad(kScale)) return;
    if (!reading.has(kScale)) {
      reading.note(kScale).shown = 1.0;
      reading.note(kScale).derived = "fp32 needs no loss scale";
    } else if (scale != 1.0) {
      reading.reader.problem(kScale, "expected 1 with opt_level O0, got " +
                                         shown(*reading.reader.find(kScale)) +
                                         ". fp32 needs no loss scale; drop the key.");
    }
    return;
  }
  precision.loss_scale =
      scale == "dynamic"
          ? grad_scaler()
          : static_scale(scale, kScale, " \"dynamic\" is the default.", reading.reader);
  if (level == 1) {
    reading.note(path).derived = "as torch_autocast in float16";
    precision.autocast = {.enabled = true, .dtype = DataType::Fp16};
  } else {
    reading.note(path).derived = "as fp16, batch norms too, with fp32 master weights";
    precision.param = DataType::Fp16;
  }
}

void read(Reading& reading) {
  const bool is_on = reading.take(kAmp + "enabled");
  const std::string name = reading.take(kAmp + "opt_level");
  std::optional<std::size_t> level;
  for (std::size_t i = 0; i < std::size(kLevels); ++i)
    if (is_on && name == kLevels[i] && !reading.reader.is_bad(kAmp + "opt_level")) level = i;
  read_decided(level, reading);
  const Json scale = reading.take(kScale);
  read_ceiling(is_on, reading);
  if (!is_on) return;
  for (const char* other : {"fp16", "bf16", "bfloat16", "torch_autocast"})
    if (reading.is_on(std::string(other) + ".enabled"))
      reading.reader.problem(kAmp + "enabled", "expected amp or " + std::string(other) +
                                                   ", got both. Drop one of the sections.");
  if (level && reading.has(kAmp + "enabled")) apply(*level, scale, reading);
  if (reading.config.zero.stage > 0)
    reading.note(kAmp + "enabled").derived =
        "DeepSpeed refuses it with ZeRO; here opt_level says what it means";
}

}  // namespace

Section amp_section() { return {kRows, read, nullptr}; }

}  // namespace equigrad
