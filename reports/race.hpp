// Race: what an interleaved run of contestants on the same work found, as plain values.
//
//   round 1:  A B C   round 2:  B C A   round 3:  C A B   ...       one contestant computes at a
//   time
//
// A group is the contestants of one model, number of ranks and accumulation. Ratios are of two
// times of one round, so what the machine does meanwhile meets both. Intervals are of the median,
// by order statistics: they assume nothing of how times are distributed. With several lives the
// processes are started anew for each, and a life is one value: the median of its rounds.
//
// Invariants: statistics and verdicts are given by whoever raced, never by a writer. A contestant
// that could not run says why in `trouble` and has no rounds.
// Units: seconds of wall clock a step, the slowest rank's; bytes a rank, of the rank with most;
// counts are a rank's, of one step.   Errors: none.
// Depends on: reports/record.hpp (Environment).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

struct MedianEstimate {
  double median = 0, low = 0, high = 0;
};

struct RaceRow {
  std::string contestant;  // "engine stage 2", "DDP"
  std::string trouble;
  std::vector<double> round_s;  // the mean step of each round's block, life by life
  MedianEstimate step_s, to_base;
  double best_step_s = 0;  // the fastest step: what the machine can do when nothing else runs
  MedianEstimate cpu_s, cpu_to_base;  // of all threads of all ranks; other work hardly changes it
  std::vector<double> round_cpu_s;
  double tokens_per_s = 0;
  std::optional<int64_t> growth_bytes;     // the process's peak over what it had before the model
  std::optional<int64_t> held_peak_bytes;  // the peak of the engine's own ledger
  std::optional<int64_t> wire_bytes;       // sent over TCP in a step, as the kernel counts
  std::map<std::string, int64_t> collectives;
  std::optional<int64_t> allocations;
  // Elements that stage 3 gathered in a cycle, and the fewest under its budget of live ones.
  std::optional<int64_t> gathered_numel, least_gathered_numel;
  // The first step's gradients beside the reference's.
  bool is_proven = false;
  double proof_margin = 0;  // share of the computed bound; 1 is its edge
  int64_t differing_elements = 0;
};

struct RaceGroupResult {
  std::string name;   // 5.3 M, fp32
  std::string model;  // gpt: 4 layers, ...
  int64_t parameters = 0, tokens_per_step = 0;
  int ranks = 0;
  int64_t accumulation = 1, lives = 1, rounds = 0, steps_per_round = 0;  // rounds of a life
  std::string base;
  double compute_limit_s = 0;  // one rank's step without communication, all ranks at it at once
  double wire_limit_s = 0;     // what the base sends / measured bandwidth
  std::vector<RaceRow> rows;
};

struct Race {
  int schema_version = 1;
  Environment environment;
  std::string command;
  std::map<std::string, std::string> versions;
  double bandwidth_bytes_per_s = 0;        // one way between two ranks, 16 MiB at a time
  double load_before = 0, load_after = 0;  // of the machine, runnable processes
  double wall_s = 0;
  std::vector<RaceGroupResult> groups;
};

std::string to_json(const Race& race);
std::string to_markdown(const Race& race);
// What a person compares: step, ratio and proof of each contestant. What does not fit into so many
// columns is left out and named.
std::string to_terminal(const Race& race, std::size_t columns);
std::string to_html(const Race& race);  // one page; needs no other file
std::string ratio_drawing(const RaceGroupResult& group);
// How the cost grows along groups whose names differ in a last number: "ranks 2", "ranks 4".
struct ScalingPoint {
  double along = 0;
  std::map<std::string, double> step_s;  // by contestant
  double limit_s = 0;                    // compute without communication
};
struct ScalingSeries {
  std::string title, along;
  std::vector<ScalingPoint> points;
};
std::vector<ScalingSeries> scaling_series(const Race& race);
std::string scaling_drawing(const std::string& title, const std::string& along,
                            const std::vector<ScalingPoint>& points);

}  // namespace equigrad::reports
