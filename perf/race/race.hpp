// RaceRun: contestants on the same work, proven first, then timed in one interleaved run.
//
// Invariants: all contestants of a group read the same two files (workload.hpp), have one thread a
// rank, and live through the rounds in processes of their own; only one computes at a time. Where
// memory does not allow all at once, a group is run in parts, each with the base in it, and ratios
// are within a part. How a process's memory lies stays with it, so a group may have several lives:
// all are started anew for each, and a life counts as one value, the median of its rounds.
// Units: see reports/race.hpp.
// Errors: a contestant that fails has its trouble in its row; std::runtime_error for anything else;
// Interrupted before every contestant has had a round. Later, a group ends with what it has: the
// caller asks conformance::ranks::interrupted().
// Depends on: workload.hpp, rank_processes.hpp, reports/race.hpp.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reports/race.hpp"

namespace equigrad::perf {

struct Contestant {
  std::string name;
  std::vector<std::string> command;  // a rank's program
  nlohmann::json settings;           // added to "start"
  bool is_ours = false;              // counted() works
  bool is_alone = false;             // without communication: its gradients are one rank's own
  // The contestant, alone, whose ranks' gradients are this one's contributions; empty: the
  // reference's are.
  std::string contributions_of = {};
};

struct RaceGroup {
  std::string name;
  nlohmann::json model;
  std::string model_text;
  int world = 2;
  int64_t batch = 4, accumulation = 1;
  bool bf16 = false;
  int rounds = 11, steps = 5, lives = 1;  // rounds of a life
  std::size_t at_once = 100;              // contestants alive at the same time
  std::string base;
  std::vector<Contestant> contestants;
};

struct RaceOptions {
  std::string scratch;  // an empty folder
  double confidence = 0.95;
  bool prove = true;
};

reports::RaceGroupResult run_group(const RaceGroup& group, const RaceOptions& options);
// Bytes a second, one way, between two ranks of the program `worker`.
double measure_bandwidth(const std::string& worker, const std::string& scratch);

}  // namespace equigrad::perf
