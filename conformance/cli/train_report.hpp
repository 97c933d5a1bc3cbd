// TrainReport: what `equigrad train` says of its steps: a row of each, and at the end how the loss
// went, how fast the engine was, and the record.
//
// Invariants: a step is in it once engine and twin have been compared; nothing here is written.
// Units: losses in nats; seconds and rates are the engine's, without the twin and the comparison;
// tokens are bytes of text, or images.
// Errors: none.
// Depends on: nlohmann-json, oracle's with_thousands (sources only). No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace equigrad::conformance::cli {

struct TrainedStep {
  double loss = 0, twin_loss = 0;       // the engine's is the mean over its ranks
  int64_t compared = 0, differing = 0;  // elements, over all ranks
  double worst_ulp = 0, seconds = 0;
};

struct TrainReport {
  std::string data;  // text or images
  int64_t parameters = 0;
  int stage = 0, world = 0, wanted_steps = 0;
  std::string precision;  // or "as configured"
  std::string twin;       // what it is built from
  uint64_t seed = 0;
  double tokens = 0;  // of a step
  std::vector<TrainedStep> steps;
  std::string first_difference;
  std::string verdict;  // HELD, FAILED, BROKEN or INTERRUPTED
  double all_seconds = 0;

  int64_t compared() const;
  int64_t most_differing() const;  // of a step
};

// Lines that begin with #, but for a step's row and the verdict; none is longer than 79 columns but
// the first two.
std::string head_of(const TrainReport& report);
std::string row_of(const TrainReport& report, std::size_t step);
std::string end_of(const TrainReport& report);
nlohmann::json record_of(const TrainReport& report);

}  // namespace equigrad::conformance::cli
