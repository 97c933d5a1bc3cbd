// Config parts: the three steps behind config.hpp, in order: read, check, account for every value.
// Each step has a part for the optional sections of config/features.hpp, and one for what
// config/precision.hpp declares.
//
// Invariants: read_config never throws for bad input; every problem names the JSON path of its key.
// Units: as in config.hpp.
// Errors: check_world_size throws ConfigError; the others return or note problems.
// Depends on: engine/config/config.hpp, engine/config/json.hpp. For the sources of the
// configuration only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/config/json.hpp"

namespace equigrad {

// How a value that is not in the file came about, by JSON path.
using Notes = std::map<std::string, std::string>;

// Reads the honoured keys; what is absent or wrong keeps its default.
EngineConfig read_config(ConfigReader& reader, Notes& notes, int world_size);
void read_features(ConfigReader& reader, Notes& notes, EngineConfig& config);
// After the stage is known. A section that is off is read for its types only.
void read_precision(ConfigReader& reader, Notes& notes, EngineConfig& config);
void read_amp(ConfigReader& reader, Notes& notes, EngineConfig& config);
// The sections of zero_optimization, after its stage: leaf_module, offload_param.
void read_zero_sections(ConfigReader& reader, EngineConfig& config);
// Whether the `device` of an offload section is the CPU; nvme is a problem.
bool reads_cpu(ConfigReader& reader, const std::string& path);
// How gradients are averaged and measured, and where the optimizer's state is.
void read_averaging(ConfigReader& reader, Notes& notes, EngineConfig& config);

// The loss scale of torch.amp.GradScaler as it is by default.
LossScaleConfig grad_scaler();

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
void check_precision(const EngineConfig& config, Checks& checks);

// Empty, or why a loss scale of `value` would change more than exponents.
std::string problem_of_scale(double value);

// The full name of a module class (torch.nn.Linear for Linear and for
// torch.nn.modules.linear.Linear); a class of another package keeps its name.
std::string module_class(const std::string& written);
// Empty, or why no module can have this full name.
std::string problem_of_module_class(const std::string& name);

void check_world_size(const std::string& where, int world_size);

// a * b * c, or false if it does not fit.
bool multiply(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t& product);

class SettingList {
 public:
  SettingList(const ConfigReader& reader, const Notes& notes) : reader_(reader), notes_(notes) {}

  void add(const std::string& path, const Json& value, const std::string& default_note = "");
  // The value that the file gives, or `fallback`; `why_not`, unless empty, is why it has no effect.
  void add_as_given(const std::string& path, const Json& fallback, const std::string& why_not = "",
                    const std::string& default_note = "");
  // The value that was added last changes nothing; a default stays one.
  void last_has_no_effect(const std::string& why);

  const ConfigReader& reader() const { return reader_; }

  std::vector<Setting> settings;

 private:
  const ConfigReader& reader_;
  const Notes& notes_;
};

// Every honoured value with its origin, then what had no effect.
std::vector<Setting> settings_of(const EngineConfig& config, const ConfigReader& reader,
                                 const Notes& notes, const std::vector<Setting>& without_effect);
void add_features(const EngineConfig& config, SettingList& list);
void add_precision(const EngineConfig& config, SettingList& list);
void add_amp(const EngineConfig& config, SettingList& list);
void add_averaging(const EngineConfig& config, SettingList& list);
void add_zero_sections(const ZeroConfig& zero, SettingList& list);
void add_offload(const EngineConfig& config, SettingList& list);

// "fp32", "bf16" or "fp16".
const char* name_of(DataType type);

bool is_on(const ConfigReader& reader, const std::string& path);

// Why the scheduler leaves optimizer.params.lr without effect; empty if it does not.
std::string why_lr_has_no_effect(const EngineConfig& config);

}  // namespace equigrad
