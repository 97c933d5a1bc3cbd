// Config parts: the three steps behind config.hpp, in order: read, check, account for every value.
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

// Ranges and relations, for a configuration from a file or built in code.
std::vector<std::string> problems_of(const EngineConfig& config, int world_size);

void check_world_size(const std::string& where, int world_size);

// a * b * c, or false if it does not fit.
bool multiply(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t& product);

// Every honoured value with its origin, then what had no effect.
std::vector<Setting> settings_of(const EngineConfig& config, const ConfigReader& reader,
                                 const Notes& notes, const std::vector<Setting>& without_effect);

}  // namespace equigrad
