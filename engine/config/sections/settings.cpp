#include <algorithm>
#include <array>
#include <sstream>

#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

const char* name_of(OptimizerConfig::Kind kind) {
  switch (kind) {
    case OptimizerConfig::Kind::Sgd:
      return "SGD";
    case OptimizerConfig::Kind::Adam:
      return "Adam";
    case OptimizerConfig::Kind::AdamW:
      return "AdamW";
  }
  return "";
}

void add_optimizer(const OptimizerConfig& optimizer, const std::string& why_no_lr,
                   const ConfigReader& reader, SettingList& list) {
  const std::string params = "optimizer.params.";
  list.add("optimizer.type", name_of(optimizer.kind));
  list.add(params + "lr", optimizer.lr);
  if (!why_no_lr.empty()) list.last_has_no_effect(why_no_lr);
  list.add(params + "weight_decay", optimizer.weight_decay);
  if (optimizer.kind == OptimizerConfig::Kind::Sgd) {
    list.add(params + "momentum", optimizer.momentum);
    list.add(params + "dampening", optimizer.dampening);
    list.add(params + "nesterov", optimizer.nesterov);
    return;
  }
  list.add(params + "betas", Json::array({optimizer.beta1, optimizer.beta2}));
  list.add(params + "eps", optimizer.eps);
  list.add(params + "adam_w_mode", optimizer.kind == OptimizerConfig::Kind::AdamW);
  const Json* torch_adam = reader.find(params + "torch_adam");
  list.add(params + "torch_adam", torch_adam == nullptr ? Json(false) : *torch_adam,
           "only the default of weight_decay depends on it");
}

void add_zero(const ZeroConfig& zero, SettingList& list) {
  const std::string section = "zero_optimization.";
  list.add(section + "stage", zero.stage);
  list.add(section + "overlap_comm", zero.overlap_comm);
  list.add(section + "reduce_bucket_size", zero.reduce_bucket_size);
  list.add(section + "allgather_bucket_size", zero.allgather_bucket_size);
  list.add(section + "stage3_prefetch_bucket_size", zero.stage3_prefetch_bucket_size);
  list.add(section + "stage3_param_persistence_threshold", zero.stage3_param_persistence_threshold);
  list.add(section + "stage3_max_live_parameters", zero.stage3_max_live_parameters);
  list.add(section + "stage3_max_reuse_distance", zero.stage3_max_reuse_distance);
}

const char* name_of(Setting::Origin origin) {
  switch (origin) {
    case Setting::Origin::File:
      return "file";
    case Setting::Origin::Default:
      return "default";
    case Setting::Origin::Derived:
      return "derived";
    case Setting::Origin::NoEffect:
      return "no effect here";
  }
  return "";
}

}  // namespace

void SettingList::add(const std::string& path, const Json& value, const std::string& default_note) {
  const auto note = notes_.find(path);
  const bool derived = note != notes_.end();
  Setting setting{path, value.dump(), Setting::Origin::Default, default_note};
  if (reader_.has(path)) {
    setting.origin = Setting::Origin::File;
    setting.note.clear();
  } else if (derived) {
    setting.origin = Setting::Origin::Derived;
  }
  if (derived) setting.note = note->second;
  settings.push_back(setting);
}

void SettingList::add_as_given(const std::string& path, const Json& fallback,
                               const std::string& why_not, const std::string& default_note) {
  const Json* given = reader_.has(path) ? reader_.find(path) : &fallback;
  const bool is_whole = given->is_number() && fallback.is_number_integer();
  const bool is_real = given->is_number() && fallback.is_number_float();
  add(path,
      is_whole  ? Json(given->get<std::int64_t>())
      : is_real ? Json(given->get<double>())
                : *given,
      default_note);
  if (!why_not.empty()) last_has_no_effect(why_not);
}

void SettingList::last_has_no_effect(const std::string& why) {
  Setting& last = settings.back();
  if (last.origin == Setting::Origin::File) last.origin = Setting::Origin::NoEffect;
  last.note = why;
}

std::vector<Setting> settings_of(const EngineConfig& config, const ConfigReader& reader,
                                 const Notes& notes, const std::vector<Setting>& without_effect) {
  SettingList list(reader, notes);
  list.add("train_batch_size", config.train_batch_size);
  list.add("train_micro_batch_size_per_gpu", config.train_micro_batch_size_per_gpu);
  list.add("gradient_accumulation_steps", config.gradient_accumulation_steps);
  add_optimizer(config.optimizer, why_lr_has_no_effect(config), reader, list);
  list.add("gradient_clipping", config.gradient_clipping, "off; DeepSpeed 0.19.3 and later: 1.0");
  add_averaging(config, list);
  add_precision(config, list);
  add_amp(config, list);
  add_zero(config.zero, list);
  add_zero_sections(config.zero, list);
  add_offload(config, list);
  list.add("reduction", config.reduction == ReductionOrder::Exact    ? "exact"
                        : config.reduction == ReductionOrder::Native ? "native"
                                                                     : "pinned");
  list.add("communication_timeout_s", config.communication_timeout_s);
  add_features(config, list);
  list.settings.insert(list.settings.end(), without_effect.begin(), without_effect.end());
  return list.settings;
}

std::string describe(const EffectiveConfig& effective) {
  std::array<std::size_t, 3> widths{};
  const auto cells_of = [](const Setting& setting) {
    return std::array<std::string, 3>{setting.key, setting.value, name_of(setting.origin)};
  };
  for (const Setting& setting : effective.settings) {
    const auto cells = cells_of(setting);
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::ostringstream text;
  for (const Setting& setting : effective.settings) {
    const auto cells = cells_of(setting);
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i)
      line += cells[i] + std::string(widths[i] - cells[i].size() + 2, ' ');
    line += setting.note;
    text << line.substr(0, line.find_last_not_of(' ') + 1) << '\n';
  }
  return text.str();
}

}  // namespace equigrad
