#include "engine/config/features.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <set>

#include "engine/config/sections/sections.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

using Kind = SchedulerConfig::Kind;
using PerGroup = SchedulerConfig::PerGroup;
using WarmupType = SchedulerConfig::WarmupType;

constexpr std::array<Kind, 5> kKinds{Kind::WarmupLr, Kind::WarmupDecayLr, Kind::WarmupCosineLr,
                                     Kind::OneCycle, Kind::LrRangeTest};
const std::string kParams = "scheduler.params.";
const std::string kLayerDrop = "progressive_layer_drop.";
const std::string kFlops = "flops_profiler.";

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string list_of_kinds() {
  std::string text;
  for (const Kind kind : kKinds)
    text += (text.empty()            ? ""
             : kind == kKinds.back() ? " or "
                                     : ", ") +
            std::string(name_of(kind));
  return text;
}

std::optional<Kind> kind_named(const std::string& name) {
  for (const Kind kind : kKinds)
    if (lower(name_of(kind)) == lower(name)) return kind;
  return std::nullopt;
}

// " Did you mean "WarmupLR"?", whatever the case of the letters.
std::string nearest_kind(const std::string& name) {
  std::vector<std::string> names;
  for (const Kind kind : kKinds) names.push_back(lower(name_of(kind)));
  const std::optional<Kind> kind = kind_named(nearest_name(lower(name), names));
  return kind ? " Did you mean \"" + std::string(name_of(*kind)) + "\"?" : " Choose one of them.";
}

// DeepSpeed looks up any other name among torch's schedulers, which are Python classes.
bool is_of_torch(const std::string& name) {
  static const std::set<std::string> names{
      "LambdaLR",          "MultiplicativeLR", "StepLR",
      "MultiStepLR",       "ConstantLR",       "LinearLR",
      "ExponentialLR",     "SequentialLR",     "PolynomialLR",
      "CosineAnnealingLR", "ChainedScheduler", "ReduceLROnPlateau",
      "CyclicLR",          "OneCycleLR",       "CosineAnnealingWarmRestarts"};
  return names.contains(name);
}

// Reads each parameter into its field.
struct ReadParameter {
  ConfigReader& reader;

  void operator()(const char* name, std::int64_t& value) const {
    value = reader.integer(kParams + name, value);
  }
  void operator()(const char* name, double& value) const {
    value = reader.number(kParams + name, value);
  }
  void operator()(const char* name, bool& value) const {
    value = reader.boolean(kParams + name, value);
  }
  void operator()(const char* name, std::optional<std::int64_t>& value) const {
    if (reader.has(kParams + name)) value = reader.integer(kParams + name, 0);
  }
  void operator()(const char* name, WarmupType& value) const {
    const std::string path = kParams + name;
    const std::string text = reader.text(path, "log");
    if (text != "log" && text != "linear")
      reader.problem(path, "expected \"log\" or \"linear\", got \"" + text + "\"." +
                               did_you_mean(text, {"log", "linear"}));
    value = text == "linear" ? WarmupType::Linear : WarmupType::Log;
  }
  void operator()(const char* name, PerGroup& value) const {
    const std::string path = kParams + name;
    if (reader.has(path)) {
      const Json& given = *reader.find(path);
      const Json all = given.is_array() ? given : Json::array({given});
      if (!all.empty() &&
          std::all_of(all.begin(), all.end(), [](const Json& one) { return one.is_number(); })) {
        value = all.get<PerGroup>();
        return;
      }
      reader.problem(path, "expected a number, or a list with one for each parameter group, got " +
                               shown(given) + ". Write 1e-3 or [1e-3, 1e-4].");
    }
    if (reader.is_bad(path) && value.empty()) value = {0.0};  // one problem is enough
  }
};

void refuse_other_parameters(const SchedulerConfig& scheduler, ConfigReader& reader) {
  std::set<std::string> own;
  for_each_parameter(scheduler, [&](const char* name, const auto&) { own.insert(name); });
  for (const Kind kind : kKinds) {
    SchedulerConfig other;
    other.kind = kind;
    for_each_parameter(other, [&](const char* name, const auto&) {
      const std::string path = kParams + name;
      if (own.contains(name) || !reader.has(path)) return;  // what is refused counts as absent
      reader.problem(path, "expected a parameter of " + std::string(name_of(scheduler.kind)) +
                               ", got \"" + name + "\", which it does not have. Drop the key.");
    });
  }
}

// What stands for a key that is absent and has no constant default.
void derive(SchedulerConfig& scheduler, bool is_sgd, ConfigReader& reader, Notes& notes) {
  const auto absent = [&](const char* name) {
    return !reader.has(kParams + name) && !reader.is_bad(kParams + name);
  };
  if (scheduler.kind == Kind::WarmupLr && absent("warmup_max_lr"))
    notes[kParams + "warmup_max_lr"] = "each parameter group's own lr";
  if (scheduler.kind == Kind::WarmupDecayLr && absent("warmup_max_lr"))
    scheduler.warmup_max_lr = {1e-3};
  if (reader.is_bad(kParams + "total_num_steps"))  // one problem is enough
    scheduler.total_num_steps = std::max<std::int64_t>(1, scheduler.warmup_num_steps);
  if (scheduler.kind != Kind::OneCycle) return;
  if (absent("cycle_second_step_size")) {
    scheduler.cycle_second_step_size = scheduler.cycle_first_step_size;
    notes[kParams + "cycle_second_step_size"] = "as cycle_first_step_size";
  }
  if (absent("cycle_second_stair_count")) {
    scheduler.cycle_second_stair_count = scheduler.cycle_first_stair_count;
    notes[kParams + "cycle_second_stair_count"] = "as cycle_first_stair_count";
  }
  if (is_sgd && absent("cycle_momentum")) {
    scheduler.cycle_momentum = false;
    notes[kParams + "cycle_momentum"] = "SGD keeps its momentum, as in DeepSpeed";
  }
}

std::optional<SchedulerConfig> read_scheduler(bool is_sgd, ConfigReader& reader, Notes& notes) {
  if (!reader.has("scheduler.type")) {
    if (reader.has("scheduler.params") && !reader.is_bad("scheduler.type"))
      reader.problem("scheduler.type",
                     "expected " + list_of_kinds() + ", got parameters and no type. Add the key.");
    return std::nullopt;
  }
  const std::string written = reader.text("scheduler.type", "WarmupLR");
  if (reader.is_bad("scheduler.type")) return std::nullopt;
  const std::optional<Kind> kind = kind_named(written);
  if (!kind) {
    reader.problem("scheduler.type",
                   "expected " + list_of_kinds() + ", got \"" + written + "\"" +
                       (is_of_torch(written) ? ", a Python class of torch. Choose one of the five."
                                             : "." + nearest_kind(written)));
    return std::nullopt;
  }
  SchedulerConfig scheduler;
  scheduler.kind = *kind;
  for_each_parameter(scheduler, ReadParameter{reader});
  derive(scheduler, is_sgd, reader, notes);
  refuse_other_parameters(scheduler, reader);
  return scheduler;
}

Json json_of(const PerGroup& value) {
  if (value.empty()) return nullptr;
  return value.size() == 1 ? Json(value[0]) : Json(value);
}
Json json_of(WarmupType value) { return value == WarmupType::Log ? "log" : "linear"; }
Json json_of(const std::optional<std::int64_t>& value) { return value ? Json(*value) : Json(); }
template <class Number>
Json json_of(const Number& value) {
  return value;
}

void add_scheduler(const SchedulerConfig& scheduler, SettingList& list) {
  list.add("scheduler.type", name_of(scheduler.kind));
  const auto mute = [&](const std::string& name) -> std::string {
    const bool momentum = name.ends_with("_mom") || name == "decay_mom_rate";
    if (momentum && !scheduler.cycle_momentum) return "cycle_momentum is false";
    const bool decay = name == "decay_mom_rate" || name == "decay_lr_rate";
    return decay && scheduler.decay_step_size == 0 ? "decay_step_size is 0" : "";
  };
  for_each_parameter(scheduler, [&](const char* name, const auto& value) {
    list.add(kParams + name, json_of(value));
    const std::string why = mute(name);
    if (!why.empty()) list.last_has_no_effect(why);
  });
}

}  // namespace

const char* name_of(SchedulerConfig::Kind kind) {
  switch (kind) {
    case Kind::WarmupLr:
      return "WarmupLR";
    case Kind::WarmupDecayLr:
      return "WarmupDecayLR";
    case Kind::WarmupCosineLr:
      return "WarmupCosineLR";
    case Kind::OneCycle:
      return "OneCycle";
    case Kind::LrRangeTest:
      return "LRRangeTest";
  }
  return "";
}

void read_features(ConfigReader& reader, Notes& notes, EngineConfig& config) {
  const bool is_sgd = config.optimizer.kind == OptimizerConfig::Kind::Sgd;
  config.scheduler = read_scheduler(is_sgd, reader, notes);
  ProgressiveLayerDropConfig& drop = config.progressive_layer_drop;
  drop.enabled = reader.boolean(kLayerDrop + "enabled", drop.enabled);
  drop.theta = reader.number(kLayerDrop + "theta", drop.theta);
  drop.gamma = reader.number(kLayerDrop + "gamma", drop.gamma);
  FlopsProfilerConfig& flops = config.flops_profiler;
  flops.enabled = reader.boolean(kFlops + "enabled", flops.enabled);
  flops.profile_step = reader.integer(kFlops + "profile_step", flops.profile_step);
  flops.module_depth = reader.integer(kFlops + "module_depth", flops.module_depth);
  flops.top_modules = reader.integer(kFlops + "top_modules", flops.top_modules);
  flops.detailed = reader.boolean(kFlops + "detailed", flops.detailed);
  flops.output_file = reader.text(kFlops + "output_file", flops.output_file);
  flops.recompute_fwd_factor =
      reader.number(kFlops + "recompute_fwd_factor", flops.recompute_fwd_factor);
}

std::string why_lr_has_no_effect(const EngineConfig& config) {
  if (!config.scheduler) return "";
  const SchedulerConfig& scheduler = *config.scheduler;
  const bool is_used =
      scheduler.kind == Kind::WarmupCosineLr ||
      ((scheduler.kind == Kind::WarmupLr || scheduler.kind == Kind::WarmupDecayLr) &&
       scheduler.warmup_max_lr.empty());
  return is_used ? "" : std::string(name_of(scheduler.kind)) + " sets the learning rate";
}

void add_features(const EngineConfig& config, SettingList& list) {
  if (config.scheduler)
    add_scheduler(*config.scheduler, list);
  else
    list.add("scheduler.type", nullptr, "the learning rate is constant");
  const auto add = [&list](bool enabled, const std::string& path, const Json& value) {
    list.add(path, value);
    if (!enabled) list.last_has_no_effect("it is off");
  };
  const ProgressiveLayerDropConfig& drop = config.progressive_layer_drop;
  list.add(kLayerDrop + "enabled", drop.enabled);
  add(drop.enabled, kLayerDrop + "theta", drop.theta);
  add(drop.enabled, kLayerDrop + "gamma", drop.gamma);
  const FlopsProfilerConfig& flops = config.flops_profiler;
  list.add(kFlops + "enabled", flops.enabled);
  add(flops.enabled, kFlops + "profile_step", flops.profile_step);
  add(flops.enabled, kFlops + "module_depth", flops.module_depth);
  add(flops.enabled, kFlops + "top_modules", flops.top_modules);
  add(flops.enabled, kFlops + "detailed", flops.detailed);
  add(flops.enabled, kFlops + "output_file",
      flops.output_file.empty() ? Json() : Json(flops.output_file));
  add(flops.enabled, kFlops + "recompute_fwd_factor", flops.recompute_fwd_factor);
}

}  // namespace equigrad
