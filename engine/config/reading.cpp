#include "engine/config/reading.hpp"

#include <stdexcept>

namespace equigrad {
namespace {

// A wrong entry of the table, or a wrong use of it: never a wrong file.
void require(bool holds, const std::string& path, const char* otherwise) {
  if (!holds) throw std::logic_error("configuration: the key " + path + " " + otherwise);
}

bool applies(const Row& row, const EngineConfig& config) {
  return row.field.of == nullptr || row.field.of(config);
}

}  // namespace

Json Reading::take(const std::string& path) {
  const Row* row = schema_.find(path);
  require(row != nullptr && row->treatment == KeyTreatment::Read, path, "is read and has no row");
  Note& of_row = notes_[path];
  require(!of_row.shown, path, "is read twice");
  of_row.shown = read_value(*row, reader);
  return *of_row.shown;
}

void Reading::store(const std::string& prefix) {
  for (const Row& row : schema_.rows()) {
    const std::string path = row.path;
    if (!path.starts_with(prefix) || row.field.set == nullptr || !applies(row, config)) continue;
    const Json value = take(path);
    if (!reader.has(path)) continue;
    const EngineConfig before = config;
    row.field.set(config, value);
    if (row.field.get(config) == value || !value.is_number_integer()) continue;
    config = before;  // it does not fit
    for (const std::string& problem : range_problems(row.values, value))
      reader.problem(path, problem);
  }
}

bool Reading::is_on(const std::string& path) const {
  const Json* value = reader.find(path);
  return value != nullptr && *value == Json(true);
}

void Reading::refuse_others(const std::string& prefix, const std::string& owner) {
  for (const Row& row : schema_.rows()) {
    const std::string path = row.path;
    if (path.starts_with(prefix) && !applies(row, config) && has(path))
      reader.problem(path, "expected a parameter of " + owner + ", got \"" + last_part(path) +
                               "\", which it does not have. Drop the key.");
  }
}

void Reading::finish() const {
  for (const Row& row : schema_.rows()) {
    if (row.treatment != KeyTreatment::Read || !applies(row, config)) continue;
    const auto note = notes_.find(row.path);
    require(note != notes_.end() && note->second.shown, row.path, "has a row that nobody reads");
  }
}

Json Reading::value_of(const Row& row) const {
  return row.field.set != nullptr ? row.field.get(config) : *notes_.at(row.path).shown;
}

bool Reading::is_off(const std::string& section) const {
  const Row* row = schema_.switch_of(section);
  return row != nullptr && is_off_switch(value_of(*row));
}

std::vector<Setting> Reading::settings() const {
  std::vector<Setting> settings;
  for (const Row& row : schema_.rows()) {
    if (row.treatment != KeyTreatment::Read || !applies(row, config)) continue;
    const Note& of_row = notes_.at(row.path);
    if (of_row.is_hidden) continue;
    const bool is_given = has(row.path), is_derived = !of_row.derived.empty();
    Setting setting{.key = row.path,
                    .value = value_of(row).dump(),
                    .origin = is_given     ? Setting::Origin::File
                              : is_derived ? Setting::Origin::Derived
                                           : Setting::Origin::Default,
                    .note = is_derived ? of_row.derived
                            : is_given ? ""
                                       : row.default_note};
    const std::string section = section_of(row.path);
    std::string why = of_row.without_effect;
    if (why.empty() && schema_.switch_of(section) != schema_.find(row.path) && is_off(section))
      why = "it is off";
    if (!why.empty()) setting.note = why;
    if (!why.empty() && is_given) setting.origin = Setting::Origin::NoEffect;
    settings.push_back(setting);
  }
  return settings;
}

bool is_by_old_name(const std::string& old, const std::string& path, const std::string& shown_path,
                    Reading& reading) {
  if (!reading.has(old)) {
    reading.note(old).is_hidden = true;
    return false;
  }
  if (reading.has(path))
    reading.reader.problem(
        old, "expected it or " + shown_path + ", got both. Drop it; it is the old name.");
  return true;
}

void Checks::problem(const std::string& path, const std::string& text) {
  const bool is_known = reader_ != nullptr && reader_->is_bad(path);
  if (!text.empty() && !is_known) problems_.push_back(path + ": " + text);
}

void Checks::range(const std::string& path, const Json& value) {
  for (const std::string& text : range_problems(schema_.find(path)->values, value))
    problem(path, text);
}

void Checks::all(const EngineConfig& config) {
  for (const Section& section : schema_.sections()) {
    for (const Row& row : section.rows)
      if (row.field.set != nullptr && applies(row, config)) range(row.path, row.field.get(config));
    if (section.check != nullptr) section.check(config, *this);
  }
}

}  // namespace equigrad
