// Scale: the engine's step as one of many ranks has it, beside a ring's and DeepSpeed's.
//
// The engine's is played (play.hpp), theirs are formulas (others.hpp); both go through one network
// (network.hpp). A step's time is `compute_s` and the time of its messages, as if nothing
// overlapped: an upper bound for all of them alike. What a rank holds is the engine's forecast
// (memory/forecast.hpp), and it is an error if the played engine's own books disagree where the
// forecast is exact.
//
// Units: seconds, bytes of a rank.
// Errors: std::runtime_error when a played rank fails or holds another amount; equigrad::Error for
// ranks that fill no hosts.
// Depends on: perf/scale, perf/race, engine/memory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/scale/network.hpp"

namespace equigrad::perf {

struct ScaleOptions {
  nlohmann::json model;
  std::vector<int> worlds, stages;
  int64_t accumulation = 1;
  double compute_s = 0;
  nlohmann::json config = nlohmann::json::object();  // over the usual keys of the engine
  Network network;
};

struct ScaleRow {
  std::string who;  // "Equigrad", "ring (DDP)", "DeepSpeed"
  int stage = 0, world = 0;
  int64_t calls = 0, agreements = 0;  // of them
  Traffic all, words;                 // those of agreements and norms
  int64_t held_bytes = 0;
  int64_t peak_bytes = 0;  // received rows included; 0: not known
};

std::vector<ScaleRow> scale_rows(const ScaleOptions& options, const std::string& worker,
                                 const std::string& scratch);
std::string to_markdown(const std::vector<ScaleRow>& rows, const ScaleOptions& options);
nlohmann::json to_json(const std::vector<ScaleRow>& rows, const ScaleOptions& options);

}  // namespace equigrad::perf
