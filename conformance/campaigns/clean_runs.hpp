// CleanRuns: random configurations without a fault, none of which may raise an alarm.
//
// A configuration is a case of the matrix (with 1 to 5 micro-batches) and knobs: keys of the
// engine's configuration that must change nothing, such as bucket sizes, which the twin has no
// counterpart of. Those of a group share a twin, and so their seed.
//
// Invariants: group `index` depends on the seed and the index only; every knob is one that
// DeepSpeed has. A configuration in which every step overflows, the twin's too, has nothing to
// compare: another one takes its place.
// Units: sizes and thresholds count elements.
// Errors: nlohmann::json::exception for an answer of another form.
// Depends on: matrix.hpp, program.hpp, campaigns/process_slots.hpp, reports/kill_matrix.hpp. No
// torch.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/campaigns/process_slots.hpp"
#include "conformance/cases/matrix.hpp"
#include "conformance/on_rank/program.hpp"
#include "reports/kill_matrix.hpp"

namespace equigrad::conformance {

constexpr int64_t kConfigsOfATwin = 16;

struct CleanGroup {
  uint64_t seed = 1;                  // of weights and data
  std::vector<CaseSpec> cases;        // of one tuple
  std::vector<nlohmann::json> knobs;  // of each
};
CleanGroup clean_group(uint64_t seed, int64_t index, bool with_images);

struct CleanOptions {
  int64_t count = 0;
  uint64_t seed = 1;
  DataFiles data;
  std::string replay_prefix, replay_suffix;
  double timeout_scale = 1;
  bool quiet = false;
  std::function<bool()> is_late = [] { return false; };
};
reports::CleanRuns clean_runs(const CleanOptions& options, TaskSlots& slots);

}  // namespace equigrad::conformance
