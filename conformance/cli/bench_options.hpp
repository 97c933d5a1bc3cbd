// BenchOptions: the words of `equigrad bench`: equigrad_perf parses them, and `equigrad completion`
// completes them.
//
// Invariants: what is here names no measurement's code; who measures gives the defaults that depend
// on it, before the options are added: help shows them.
// Units: those of the options' names: milliseconds, microseconds, GB/s.
// Errors: those of CLI11, when the words are parsed.
// Depends on: option_checks.hpp, cases/filter.hpp, CLI11 (sources only).
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace equigrad::conformance::cli {

struct BenchRaceOptions {
  std::string suite = "smoke", report;
  std::string worker, older, peers, python;  // programs
  int rounds = 0, lives = 0;                 // 0: the suite's own
  std::string filter;                        // of groups
  bool no_peers = false, no_proof = false;
};

// Of gate, noise, counts, leaks and memory.
struct BenchGateOptions {
  std::string worker, older, baseline, planted = "{}";
  bool write = false;
  int runs = 20, drawn = 0, stage = 2;
  int pairs = 1, lives = 1, steps = 1;
  double margin = 0;
};

struct BenchScaleOptions {
  std::vector<int> worlds{8, 64, 512, 4096}, stages{0, 1, 2, 3}, gpt{8, 512, 8, 128, 4096};
  int accumulation = 1, ranks_per_host = 8;
  double compute_ms = 0, within_us = 5, within_gb = 100, between_us = 20, between_gb = 50;
  bool as_json = false;
};

struct BenchOptions {
  BenchRaceOptions race;
  BenchGateOptions gate;
  BenchScaleOptions scale;
  std::string memory_report;  // of memory; empty: none
};

const std::vector<std::string>& race_suites();
// Its commands, with their options.
void add_bench(CLI::App& app, BenchOptions& options);

}  // namespace equigrad::conformance::cli
