// Flops report: a profile as values, as a table with DeepSpeed's names, and as JSON.
//
// Invariants: a module's forward and backward are its own and those of all its submodules; the
// model is modules.front() and holds the totals. latency of a module is the time in its operators;
// that of the pass, from its first operator to its last.
// Units: floating-point operations ("flops"; per second: "FLOPS"), multiply-accumulates ("MACs"),
// ns, elements.
// Errors: equigrad::Error if the output file cannot be written.
// Depends on: config's FlopsProfilerConfig; nlohmann-json in the source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/config.hpp"

namespace equigrad::profile {

struct Tally {
  int64_t flops = 0;
  int64_t macs = 0;
  int64_t time_ns = 0;

  Tally& operator+=(const Tally& other);
};

struct ModuleProfile {
  std::string name;  // "" is the model
  std::string type;
  int64_t depth = 0;
  int64_t params_numel = 0;  // submodules included, each tensor once
  Tally own_forward, own_backward;
  Tally forward, backward;
};

struct UnknownOperator {
  std::string name;
  int64_t count = 0;
};

struct FlopsReport {
  std::vector<ModuleProfile> modules;    // parents first
  std::vector<UnknownOperator> unknown;  // by name
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
};

// What the profiler does not know.
struct ProfiledRun {
  int64_t step = 1;
  int64_t world_size = 1;
  int64_t micro_batch_size = 1;
  int64_t step_ns = 0;  // of the update
};

std::string table(const FlopsReport& report, const ProfiledRun& run,
                  const FlopsProfilerConfig& config);
std::string json(const FlopsReport& report, const ProfiledRun& run);

// To config.output_file, whose folder is made (JSON if it ends with ".json"), else the table to
// standard output.
void write(const FlopsReport& report, const ProfiledRun& run, const FlopsProfilerConfig& config);

}  // namespace equigrad::profile
