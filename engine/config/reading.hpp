// Reading: one file on its way through the table into an EngineConfig, and then the checks of its
// values.
//
// Invariants: every row that is honoured is taken once, or belongs to another kind of optimizer or
// scheduler; a key that no row has cannot be taken. A key has one problem: what is wrong on reading
// is not checked again.
// Errors: std::logic_error for a use without a row, a second use, and a row without a use.
// Depends on: engine/config/schema.hpp. For the sources of the configuration only.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/schema.hpp"

namespace equigrad {

// What is printed of a key beside its row.
struct Note {
  std::string derived;         // how its value came about, where the file has none
  std::string without_effect;  // why
  std::optional<Json> shown;   // its value, where it is no field
  bool is_hidden = false;
};

class Reading {
 public:
  Reading(const Schema& schema, ConfigReader& reader, int world_size)
      : reader(reader), world_size(world_size), schema_(schema) {}

  // The value that the file gives, or its default.
  Json take(const std::string& path);
  // Takes the value of every row whose path begins so and that has a field, into its field.
  void store(const std::string& prefix);
  bool has(const std::string& path) const { return reader.has(path); }
  // Whether the file says true.
  bool is_on(const std::string& path) const;
  Note& note(const std::string& path) { return notes_[path]; }
  // A problem for every key below `prefix` that is given and that no `owner` has.
  void refuse_others(const std::string& prefix, const std::string& owner);
  // Throws unless every row has been used.
  void finish() const;
  // Every honoured value with its origin.
  std::vector<Setting> settings() const;

  ConfigReader& reader;
  EngineConfig config;
  bool needs_optimizer = true;  // false: the caller brings one
  const int world_size;

 private:
  bool is_off(const std::string& section) const;
  Json value_of(const Row& row) const;

  const Schema& schema_;
  std::map<std::string, Note> notes_;
};

// Whether `old` is given, which is another name of `path`; not both may be.
bool is_by_old_name(const std::string& old, const std::string& path, const std::string& shown_path,
                    Reading& reading);

// What is wrong with values, each with the path of its key.
class Checks {
 public:
  // `reader`: of the file, null where there is none.
  Checks(const Schema& schema, int world_size, const ConfigReader* reader)
      : world_size(world_size), schema_(schema), reader_(reader) {}

  // An empty text is none.
  void problem(const std::string& path, const std::string& text);
  // The range of the row at `path`.
  void range(const std::string& path, const Json& value);
  // Every row that has a field, and the relations, section by section.
  void all(const EngineConfig& config);
  const std::vector<std::string>& problems() const { return problems_; }

  const int world_size;

 private:
  const Schema& schema_;
  const ConfigReader* reader_;
  std::vector<std::string> problems_;
};

}  // namespace equigrad
