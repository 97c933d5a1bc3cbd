#include <algorithm>

#include "engine/config/schema.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

// A feature that is present but switched off.
bool is_off(const Json& value) {
  if (value.is_null() || value == Json(false)) return true;
  if (!value.is_object()) return false;
  if (value.contains("enabled")) return value["enabled"] == Json(false);
  if (value.contains("device")) return value["device"].is_null() || value["device"] == "none";
  return std::all_of(value.begin(), value.end(),
                     [](const Json& one) { return one.is_null() || one == Json(false); });
}

bool is_accepted(const Json& value, const Json& accepted) {
  return std::any_of(accepted.begin(), accepted.end(), [&](const Json& one) {
    if (one.is_string() && value.is_string())
      return lower(one.get<std::string>()) == lower(value.get<std::string>());
    if (one.is_boolean() != value.is_boolean()) return false;
    // The library takes 2^64 - 1 for -1.
    if (value.is_number_unsigned() && one.is_number() && one < Json(0)) return false;
    return one == value;  // 1 == 1.0
  });
}

// Why a key that is given changes nothing here; empty: it is not supported.
std::string why_idle(const Row& row, const Json& value, bool is_off_here) {
  if (value.is_null()) return "null stands for the default";
  if (row.treatment == KeyTreatment::NoEffect) return row.here;
  const Json accepted = Json::parse(row.accepted);
  if (is_off_here || (accepted.empty() && is_off(value))) return "it is off";
  return is_accepted(value, accepted) ? "this is how it always is here" : "";
}

std::string problem_of_unsupported(const Row& row, const Json& value) {
  std::string accepted;
  for (const Json& one : Json::parse(row.accepted))
    accepted += (accepted.empty() ? "" : " or ") + shown(one);
  return "expected " + (accepted.empty() ? "it to be off" : accepted) + ", got " + shown(value) +
         ", which is not supported by this version. " +
         (*row.here == '\0' ? "Drop the key." : row.here);
}

struct Walk {
  const Schema& schema;
  ConfigReader& reader;
  std::vector<Setting>& settings;

  void section(const Json& value, const std::string& name);
  void inner(const Row& row, const Json& value);
  bool is_of_refused_type(const std::string& name) const;
  void key(const Row& row, const Json& value, bool is_off_here);
  void unknown(const std::string& section, const std::string& key);
};

void Walk::unknown(const std::string& section, const std::string& key) {
  std::vector<std::string> neighbours;
  std::string elsewhere;
  for (const Row& row : schema.rows()) {
    if (section_of(row.path) == section) neighbours.push_back(last_part(row.path));
    if (elsewhere.empty() && (last_part(row.path) == key || row.path == key)) elsewhere = row.path;
  }
  std::string hint;
  if (elsewhere.empty() || !nearest_name(key, neighbours).empty())
    hint = did_you_mean(key, neighbours);
  if (hint.empty() && !elsewhere.empty()) hint = " It belongs at \"" + elsewhere + "\".";
  if (hint.empty()) hint = " Drop it, or correct its name.";
  const std::string prefix = section.empty() ? "" : section + ".";
  // Quoted, a key with a dot in it is not taken for the path of a nested one.
  const bool plain = key.find('.') == std::string::npos;
  reader.problem(prefix + (plain ? key : "\"" + key + "\""),
                 "expected a known key" + (section.empty() ? "" : " of " + section) + ", got \"" +
                     key + "\"." + hint);
}

// Whether a section has the parameters of a type that is known and refused, such as Lamb: what they
// are is not looked at.
bool Walk::is_of_refused_type(const std::string& name) const {
  const Row* type = schema.find(section_of(name) + ".type");
  if (type == nullptr || type->values.choice == nullptr) return false;
  const Json* given = reader.find(type->path);
  const Words refused = type->values.choice->refused;
  return given != nullptr && given->is_string() &&
         std::any_of(refused.begin(), refused.end(), [&](const char* one) {
           return lower(one) == lower(given->get<std::string>());
         });
}

void Walk::inner(const Row& row, const Json& value) {
  if (is_of_refused_type(row.path)) return;
  if (value.is_object()) return section(value, row.path);
  if (!is_accepted(value, Json::parse(row.accepted)))
    reader.problem(row.path, "expected an object, got " + shown(value) + ". Write \"" +
                                 last_part(row.path) + "\": {...}.");
}

void Walk::key(const Row& row, const Json& value, bool is_off_here) {
  if (is_auto(value))
    return reader.problem(
        row.path,
        "expected a value, got \"auto\", a Hugging Face placeholder that its Trainer fills "
        "in; give a number (or the value that is meant), or drop the key.");
  if (row.treatment == KeyTreatment::Section && !value.is_null()) return inner(row, value);
  if (row.treatment == KeyTreatment::Read) return;
  const std::string why = why_idle(row, value, is_off_here);
  if (why.empty()) return reader.problem(row.path, problem_of_unsupported(row, value));
  settings.push_back(
      {.key = row.path, .value = shown(value), .origin = Setting::Origin::NoEffect, .note = why});
}

void Walk::section(const Json& value, const std::string& name) {
  const Row* row = schema.switch_of(name);
  const bool is_off_here =
      row != nullptr && is_off_switch(value.value(last_part(row->path), Json()));
  for (const auto& item : value.items()) {
    const std::string& inner = item.key();
    // A key with a dot in it is never the path of a nested one.
    const bool plain = inner.find('.') == std::string::npos;
    const Row* found = plain ? schema.find(name.empty() ? inner : name + "." + inner) : nullptr;
    if (found == nullptr)
      unknown(name, inner);
    else
      key(*found, item.value(), is_off_here);
  }
}

}  // namespace

void check_keys(const Schema& schema, const Json& root, ConfigReader& reader,
                std::vector<Setting>& settings) {
  Walk{schema, reader, settings}.section(root, "");
}

}  // namespace equigrad
