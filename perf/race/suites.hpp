// Suites: which contestants race on what.
//
//   targets   the three GPTs of the targets, fp32, 2 ranks, and the overhead with 1,000 parameters
//   modes     small models: bf16, low-precision states, native and exact reduction, 1 and 4 ranks
//   scaling   model size, ranks, accumulation, number of parameters, bucket size
//   all       these three in one run, of an hour and more
//   smoke     a minute, to see that everything runs
//   step      DDP's step and the engine's at 5.3 M and 29.5 M, 2 and 4 ranks, in several lives
//   python    the engine from Python beside itself from C++, stage by stage; in no other suite
//
// Invariants: without `peers` (a Python with DeepSpeed) a suite holds the engine and LibTorch only.
// Errors: std::runtime_error for an unknown suite; equigrad::Error for a filter that is none.
// Depends on: race.hpp; cases/filter.hpp (source only).
#pragma once

#include <string>
#include <vector>

#include "perf/race/race.hpp"

namespace equigrad::perf {

struct Programs {
  std::string worker;       // perf_worker
  std::string peers;        // a Python; empty: none
  std::string peer_script;  // perf/peers/worker.py
  std::string python;       // a Python with the build's torch
  std::string package;      // the folder of the package `equigrad`
  std::string older;        // perf_worker of another build, which races beside; empty: none
};

struct SuiteOptions {
  int rounds = 0, lives = 0;  // 0: the suite's own
  std::string filter;         // groups whose name contains it; where none does, cases/filter.hpp
};

std::vector<RaceGroup> make_suite(const std::string& name, const Programs& programs,
                                  const SuiteOptions& options);

// The engine with a configuration: "zero_optimization" and top-level keys over the usual ones.
nlohmann::json engine_config(int stage, int64_t batch, int64_t accumulation,
                             const nlohmann::json& more);
Contestant engine_contestant(const std::string& name, const Programs& programs,
                             const nlohmann::json& config);
nlohmann::json gpt(int layers, int dim, int heads, int context, int vocabulary);

}  // namespace equigrad::perf
