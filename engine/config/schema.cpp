#include "engine/config/schema.hpp"

#include <algorithm>
#include <cctype>

#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

const KeyRule* rule_of(const std::string& path) {
  for (const KeyRule& rule : key_rules())
    if (path == rule.path) return &rule;
  return nullptr;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::string section_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// A feature that is present but switched off.
bool is_off(const Json& value) {
  if (value.is_null() || value == Json(false)) return true;
  if (!value.is_object()) return false;
  if (value.contains("enabled")) return value["enabled"] == Json(false);
  if (value.contains("device")) return value["device"].is_null() || value["device"] == "none";
  return std::all_of(value.begin(), value.end(),
                     [](const Json& one) { return one.is_null() || one == Json(false); });
}

// A section that has a switch, which is off by default.
bool is_off_section(const Json& section, const std::string& name) {
  for (const char* key : {"enabled", "device"}) {
    if (rule_of(name + "." + key) == nullptr) continue;
    if (!section.contains(key) || section[key].is_null()) return true;
    return section[key] == Json(false) || section[key] == Json("none");
  }
  return false;
}

bool is_accepted(const Json& value, const Json& accepted) {
  return std::any_of(accepted.begin(), accepted.end(), [&](const Json& one) {
    if (one.is_string() && value.is_string())
      return lower(one.get<std::string>()) == lower(value.get<std::string>());
    if (one.is_boolean() != value.is_boolean()) return false;
    return one == value;  // 1 == 1.0
  });
}

void check_unsupported(const KeyRule& rule, const Json& value, ConfigReader& reader,
                       std::vector<Setting>& settings) {
  const Json accepted = Json::parse(rule.accepted);
  const std::string reason = rule.reason;
  if (is_accepted(value, accepted) || (accepted.empty() && is_off(value))) {
    settings.push_back({rule.path, shown(value), Setting::Origin::NoEffect,
                        accepted.empty() ? "it is off" : "this is how it always is here"});
    return;
  }
  std::string expected = "it to be off";
  if (!accepted.empty()) {
    expected.clear();
    for (const Json& one : accepted) expected += (expected.empty() ? "" : " or ") + shown(one);
  }
  reader.problem(rule.path, "expected " + expected + ", got " + shown(value) +
                                ", which is not supported by this version. " +
                                (reason.empty() ? "Drop the key." : reason));
}

void check_unknown(const std::string& section, const std::string& key, ConfigReader& reader) {
  std::vector<std::string> neighbours;
  std::string elsewhere;
  for (const KeyRule& rule : key_rules()) {
    if (section_of(rule.path) == section) neighbours.push_back(last_part(rule.path));
    if (elsewhere.empty() && (last_part(rule.path) == key || rule.path == key))
      elsewhere = rule.path;
  }
  std::string hint = did_you_mean(key, neighbours);
  if (hint.empty() && !elsewhere.empty()) hint = " It belongs at \"" + elsewhere + "\".";
  if (hint.empty()) hint = " Drop it, or correct its name.";
  const std::string prefix = section.empty() ? "" : section + ".";
  // Quoted, a key with a dot in it is not taken for the path of a nested one.
  const bool plain = key.find('.') == std::string::npos;
  reader.problem(prefix + (plain ? key : "\"" + key + "\""),
                 "expected a known key" + (section.empty() ? "" : " of " + section) + ", got \"" +
                     key + "\"." + hint);
}

void explain_auto(const std::string& path, ConfigReader& reader) {
  reader.problem(
      path,
      "expected a value, got \"auto\", a Hugging Face placeholder that its Trainer fills "
      "in; give a number (or the value that is meant), or drop the key.");
}

void check_section(const Json& section, const std::string& name, ConfigReader& reader,
                   std::vector<Setting>& settings);

void check_key(const KeyRule& rule, const Json& value, ConfigReader& reader, bool is_off_here,
               std::vector<Setting>& settings) {
  if (is_auto(value)) {
    explain_auto(rule.path, reader);
  } else if (value.is_null()) {
    if (rule.treatment != KeyTreatment::Read)  // a Read key is listed with its default
      settings.push_back(
          {rule.path, "null", Setting::Origin::NoEffect, "null stands for the default"});
  } else if (rule.treatment == KeyTreatment::Section) {
    if (value.is_object())
      check_section(value, rule.path, reader, settings);
    else
      reader.problem(rule.path, "expected an object, got " + shown(value) + ". Write \"" +
                                    last_part(rule.path) + "\": {...}.");
  } else if (rule.treatment == KeyTreatment::NoEffect) {
    settings.push_back({rule.path, shown(value), Setting::Origin::NoEffect, rule.reason});
  } else if (rule.treatment == KeyTreatment::Unsupported && is_off_here) {
    settings.push_back({rule.path, shown(value), Setting::Origin::NoEffect, "it is off"});
  } else if (rule.treatment == KeyTreatment::Unsupported) {
    check_unsupported(rule, value, reader, settings);
  }
}

void check_section(const Json& section, const std::string& name, ConfigReader& reader,
                   std::vector<Setting>& settings) {
  const bool is_off_here = is_off_section(section, name);
  for (const auto& item : section.items()) {
    const std::string& key = item.key();
    // A key with a dot in it is never the path of a nested one.
    const bool plain = key.find('.') == std::string::npos;
    const KeyRule* rule = plain ? rule_of(name.empty() ? key : name + "." + key) : nullptr;
    if (rule == nullptr)
      check_unknown(name, key, reader);
    else
      check_key(*rule, item.value(), reader, is_off_here, settings);
  }
}

}  // namespace

void check_keys(const Json& root, ConfigReader& reader, std::vector<Setting>& settings) {
  check_section(root, "", reader, settings);
}

}  // namespace equigrad
