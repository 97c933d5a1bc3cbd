// Play: the calls that one rank's engine makes of its communicator in a step, of W ranks.
//
// Real: W processes over Gloo, each of which writes its calls down (perf/worker/recorded_wire.hpp).
// Played: one process, whose communicator says that there are W and carries nothing
// (perf/worker/empty_wire.hpp). Both run the same engine on the same model, so what is played is
// its own schedule: bucket plan, launches, reductions, gathers, agreements, norm. The two are
// equal, call by call, where ranks do the same.
//
// Invariants: of the fourth step: before it plans are learnt and memory is kept.
// Units: bytes.
// Errors: std::runtime_error when a rank fails.
// Depends on: perf/race (workload, rank_processes, suites), perf/scale/network.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "perf/race/rank_processes.hpp"
#include "perf/race/workload.hpp"
#include "perf/scale/network.hpp"

namespace equigrad::perf {

struct PlayedStep {
  nlohmann::json calls;         // as RecordedWire has them
  int64_t held_bytes = 0;       // by the engine's books, between steps
  int64_t held_peak_bytes = 0;  // since it was made
  int64_t under_way_bytes = 0;  // beside it: what reductions receive into, the most at a time
};

// A model's weights and batches, and what a step of it is made with.
struct Piece {
  nlohmann::json model;
  const Workload& workload;
  int64_t batch = 1;
  nlohmann::json config;  // of the engine
};

// So many ranks, of a host; 0: all are on one.
struct Ranks {
  int world = 1, local = 0;
};

class Player {
 public:
  static Player real(const std::string& worker, const std::string& scratch, Ranks of);
  static Player played(const std::string& worker, const std::string& scratch, Ranks of);

  // Of every rank that there is.
  std::vector<PlayedStep> step(const Piece& piece);
  // The first step's averaged ones, into a file.
  void write_gradients(const Piece& piece, const std::string& path);

 private:
  Player(std::unique_ptr<RankProcesses> processes, nlohmann::json request)
      : processes_(std::move(processes)), request_(std::move(request)) {}
  void start(const Piece& piece);

  std::unique_ptr<RankProcesses> processes_;
  nlohmann::json request_;  // of every start
};

// What the calls send, in this network.
struct StepTraffic {
  int64_t calls = 0, agreements = 0;  // of them
  Traffic all, words;                 // those of agreements and norms
};
StepTraffic traffic_of(const nlohmann::json& calls, int world, const Network& network);

}  // namespace equigrad::perf
