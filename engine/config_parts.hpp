// Config parts: the three steps behind config.hpp, in order: read, check, account for every value.
// Each step has a part for the optional sections of config_features.hpp.
//
// Invariants: read_config never throws for bad input; every problem names the JSON path of its key.
// Units: as in config.hpp.
// Errors: check_world_size throws ConfigError; the others return or note problems.
// Depends on: engine/config.hpp, engine/config_json.hpp. For the sources of the configuration only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/config.hpp"
#include "engine/config_json.hpp"

namespace equigrad {

// How a value that is not in the file came about, by JSON path.
using Notes = std::map<std::string, std::string>;

// Reads the honoured keys; what is absent or wrong keeps its default.
EngineConfig read_config(ConfigReader& reader, Notes& notes, int world_size);
void read_features(ConfigReader& reader, Notes& notes, EngineConfig& config);

// Collects what is wrong with values, each with the path of its key.
struct Checks {
  std::vector<std::string> problems;

  void problem(const std::string& path, const std::string& text);
  void at_least(const std::string& path, std::int64_t value, std::int64_t least);
  // Scalars of an update are rounded once to fp32, and must stay finite there.
  void finite(const std::string& path, double value);
  void not_negative(const std::string& path, double value);
};

// A number as JSON, or "nan" and "inf".
std::string text_of(double value);

// Ranges and relations, for a configuration from a file or built in code.
std::vector<std::string> problems_of(const EngineConfig& config, int world_size);
void check_features(const EngineConfig& config, Checks& checks);

void check_world_size(const std::string& where, int world_size);

// a * b * c, or false if it does not fit.
bool multiply(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t& product);

class SettingList {
 public:
  SettingList(const ConfigReader& reader, const Notes& notes) : reader_(reader), notes_(notes) {}

  void add(const std::string& path, const Json& value, const std::string& default_note = "");
  // The value that was added last changes nothing; a default stays one.
  void last_has_no_effect(const std::string& why);

  std::vector<Setting> settings;

 private:
  const ConfigReader& reader_;
  const Notes& notes_;
};

// Every honoured value with its origin, then what had no effect.
std::vector<Setting> settings_of(const EngineConfig& config, const ConfigReader& reader,
                                 const Notes& notes, const std::vector<Setting>& without_effect);
void add_features(const EngineConfig& config, SettingList& list);

// Why the scheduler leaves optimizer.params.lr without effect; empty if it does not.
std::string why_lr_has_no_effect(const EngineConfig& config);

}  // namespace equigrad
