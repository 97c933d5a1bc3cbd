#include "conformance/generator/idle_keys.hpp"

#include <algorithm>

#include "engine/config/schema.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;

const std::vector<json>& anything() {
  static const std::vector<json> values = {true, false, 0, 1, 0.5, "text", json::array()};
  return values;
}

void put(json& to, const std::string& path, const json& value) {
  json* place = &to;
  std::size_t from = 0;
  for (auto dot = path.find('.'); dot != std::string::npos; dot = path.find('.', from)) {
    place = &(*place)[path.substr(from, dot - from)];
    from = dot + 1;
  }
  (*place)[path.substr(from)] = value;
}

// A section that none of the two has may be added, unless it is one of those that must not stand
// beside another, or alone.
bool may_have(const json& config, const json& knobs, const std::string& path) {
  const std::string section = section_of(path);
  if (section.empty() || section == "zero_optimization") return true;
  return at_path(config, section) != nullptr || at_path(knobs, section) != nullptr;
}

}  // namespace

const json* at_path(const json& config, const std::string& path) {
  const json* place = &config;
  std::size_t from = 0;
  while (place->is_object()) {
    const auto dot = path.find('.', from);
    const auto found = place->find(path.substr(from, dot - from));
    if (found == place->end()) return nullptr;
    if (dot == std::string::npos) return &*found;
    place = &*found;
    from = dot + 1;
  }
  return nullptr;
}

const std::vector<IdleKey>& idle_keys() {
  static const std::vector<IdleKey> keys = [] {
    std::vector<IdleKey> list;
    for (const auto& row : schema().rows()) {
      if (row.treatment == KeyTreatment::NoEffect) list.push_back({row.path, anything()});
      if (std::string(row.path) == "dataloader_drop_last")  // of Python's loader alone
        list.push_back({row.path, {true, false}});
      if (row.treatment != KeyTreatment::Unsupported) continue;
      IdleKey key{row.path, {}};
      for (const auto& value : json::parse(row.accepted)) key.values.push_back(value);
      // A feature with a section of its own is switched off in one of two ways.
      if (key.values.empty()) key.values = {false, json{{"enabled", false}}};
      list.push_back(std::move(key));
    }
    return list;
  }();
  return keys;
}

void add_idle_keys(Dice& dice, const json& config, json& knobs) {
  const auto wanted = dice.pick<int>({0, 0, 0, 1, 1, 2, 5});
  for (int i = 0; i < wanted; ++i) {
    const auto& key = dice.pick(idle_keys());
    const auto value = dice.pick(key.values);
    if (at_path(config, key.path) != nullptr || at_path(knobs, key.path) != nullptr) continue;
    if (may_have(config, knobs, key.path)) put(knobs, key.path, value);
  }
}

}  // namespace equigrad::conformance
