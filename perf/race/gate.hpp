// Gate: whether a change made a step cost more.
//
//   counts  collectives, bytes and allocations of a step, and the ledger, exactly those of a file
//   leaks   nothing grows over many steps: neither what the allocator handed out, nor the ledger
//   times   two builds or two configurations by interleaved pairs: regressed, equivalent or
//           inconclusive (medians.hpp)
//
// A pair is a block of steps of the one and a block of the other, in turn first; its value is the
// ratio of the blocks' times: wall clock of the slowest rank, and CPU time of all, which other work
// on the machine disturbs less. Regressed in one of them is regressed.
//
// Invariants: counts depend on the build and LibTorch's version only, not on the machine; times
// are compared within one run on one machine and with nothing else.
// Units: bytes a rank and step; ratios are new / old.
// Errors: std::runtime_error when a rank fails.
// Depends on: race.hpp, medians.hpp.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/race/medians.hpp"
#include "perf/race/race.hpp"

namespace equigrad::perf {

// By configuration: {"stage 2, pinned, ranks 2": {"rank 0": {"collectives": ..., ...}, ...}}.
// `faults` go to every worker: planted slow-downs that the gate must catch.
nlohmann::json count_steps(const std::string& worker, const std::string& scratch,
                           const nlohmann::json& faults = nlohmann::json::object(),
                           const std::vector<int>& worlds = {1, 2, 4});
// "stage 2, pinned, ranks 2: rank 0: collectives.all_to_all: expected 3, got 4", one a difference.
std::vector<std::string> differences(const nlohmann::json& expected, const nlohmann::json& got);

// The least growth of a few windows of `steps` steps: a collective that is under way when a window
// ends holds its memory a little longer, which comes and goes; a leak is in every window.
struct LeakReport {
  int64_t steps = 0;
  int64_t grown_bytes = 0, grown_count = 0;  // of what the allocator handed out
  int64_t ledger_bytes = 0;                  // growth of what the engine holds
  bool leaks() const { return grown_bytes > 0 || grown_count > 0 || ledger_bytes > 0; }
};
LeakReport find_leaks(const std::string& worker, const std::string& scratch, int stage,
                      const nlohmann::json& faults = nlohmann::json::object());

// Both programs are started again after `pairs` pairs, and a life is one value (medians.hpp). The
// verdict is asked for after as many lives as its confidence needs, then after half as many more,
// and so on, and given once there is one; every question has its share of 1 - confidence. Of one
// life the pairs are the values.
struct TimesPlan {
  Contestant older, newer;
  nlohmann::json model;
  int world = 2;
  int64_t batch = 4;
  int pairs = 8, steps = 3, lives = 64;
  double margin = 0.02, confidence = 0.99;
};
struct TimesResult {
  std::vector<double> ratios, cpu_ratios;  // by pair, life by life
  int lives = 0;
  reports::MedianEstimate ratio, cpu_ratio;
  Verdict verdict = Verdict::Inconclusive;
};
// After how many lives a verdict is asked for, and the confidence of one question.
struct Looks {
  std::vector<int> lives;
  double confidence = 0;
};
Looks looks_of(const TimesPlan& plan);
TimesResult compare_times(const TimesPlan& plan, const std::string& scratch);

// By pair, of one life of both programs.
struct LifeTimes {
  std::vector<double> ratios, cpu_ratios;
};
// What compare_times() makes of lives: `live` is asked for one after the other, from 1.
TimesResult judge_lives(const TimesPlan& plan, const std::function<LifeTimes(int life)>& live);
std::vector<LifeTimes> lives_of(const TimesResult& result);
// So many runs of lives that are drawn from these, each as often as it comes; always the same ones.
std::vector<TimesResult> judge_drawn(const TimesPlan& plan, const std::vector<LifeTimes>& lives,
                                     int runs);

// What runs of a program against itself came to.
struct Noise {
  int runs = 0, alarms = 0, open = 0;
  double widest = 0;  // how far a median ratio is from 1
  void add(const TimesResult& result);
  std::string text(const std::string& of) const;  // "5 runs of ...: 0 false alarms, ..."
};

// What a time depends on besides the program; times of another machine are not compared.
std::string machine_key();

}  // namespace equigrad::perf
