// Schema: the configuration as one table, from which parsing, `equigrad config check`, the page
// docs/configuration.md and the JSON Schema come.
//
// Invariants: the table names every key of DeepSpeed's configuration that this engine knows, once,
// and after its section; in the order in which keys are read, checked and printed. A key that is
// not in it is unknown, and an error.
// Errors: none are thrown for bad values; problems go to the reader, or are returned.
// Depends on: engine/config/row.hpp. For the sources of the configuration only.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/config/row.hpp"

namespace equigrad {

class Reading;
class Checks;

// A part of the table, and what its rows can't say: `read` takes every row (reading.hpp), and
// `check` finds wrong relations between values.
struct Section {
  std::span<const Row> rows;
  void (*read)(Reading&) = nullptr;
  void (*check)(const EngineConfig&, Checks&) = nullptr;
};

class Schema {
 public:
  explicit Schema(const std::vector<Section>& sections);
  Schema(const Schema&) = delete;  // paths lie in indices_

  // The rows of both have whole paths.
  const std::vector<Section>& sections() const { return sections_; }
  const std::vector<Row>& rows() const { return rows_; }
  const Row* find(const std::string& path) const;  // null: unknown
  // The key that switches a section on, "enabled" or "device"; null if it has none.
  const Row* switch_of(const std::string& section) const;

 private:
  std::vector<Section> sections_;
  std::vector<Row> rows_;
  std::map<std::string, std::size_t> indices_;
};

const Schema& schema();

// "a.b" of "a.b.c", and "c".
std::string section_of(const std::string& path);
std::string last_part(const std::string& path);

Json default_of_row(const Row& row);

// Whether the value of a switch leaves its section off.
bool is_off_switch(const Json& value);

// The value as its field would hold it; a wrong one is a problem, and gives the default.
Json read_value(const Row& row, ConfigReader& reader);

// What is wrong with the numbers of `value`, which has the row's type.
std::vector<std::string> range_problems(const Values& values, const Json& value);

// Walks the whole file against the table. Notes a problem for every unknown, unsupported or "auto"
// key, and a setting for every key that was accepted without effect.
void check_keys(const Schema& schema, const Json& root, ConfigReader& reader,
                std::vector<Setting>& settings);

// The names with " or " before the last.
std::string joined(Words names, const char* quote);

// A bound of a range: a whole number, or 2^53.
std::string text_of_bound(double bound);

// A number as JSON, or "nan" and "inf".
std::string text_of(double value);

std::string lower(std::string text);

// Every name that DeepSpeed takes for a type, in lower case.
const std::map<std::string, DataType>& data_type_names();

}  // namespace equigrad
