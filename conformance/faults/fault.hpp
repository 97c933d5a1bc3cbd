// Fault: a bug of a distributed training engine, planted at one of our engine's seams, by name.
//
// catalogue() has them all: bugs that were real somewhere (`bugs` names them as the table in
// faults/README.md does), and mutants: everything that can happen to the data at a seam.
// open_bugs() has the rest of that table, each with the reason why nothing here stands for it.
//
// Invariants: names are unique; a fault does nothing before the first pass but where its text says
// so; every rank still issues the same collectives unless its text says so; a fault counts as
// having acted only when it changed a bit, left out a call or made it twice.
// Units: steps and micro-batches count from 0; micro_batch -1: not in a pass.
// Errors: equigrad::Error for a name that is none.
// Depends on: engine/comm/communicator.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/comm/communicator.hpp"

namespace equigrad::conformance::faults {

// Where the run is; the program moves it, a fault looks at it.
struct Moment {
  int step = -1;
  int micro_batch = -1;
  int micro_batches = 1;  // of a step
};

// What happened in this process.
struct Act {
  int64_t times = 0;
  Moment first;                      // when it acted first
  std::set<std::string> parameters;  // at that time, where the seam knows them; empty: it does not
  nlohmann::json to_json() const;    // {"times", "step", "micro_batch", "parameters"}
};

// What a fault sees while it is planted.
class FaultContext {
 public:
  FaultContext(int rank, int world_size, std::shared_ptr<const Moment> moment,
               std::vector<std::string> parameters);
  int rank() const { return rank_; }  // of those that ZeRO shards over
  int world_size() const { return world_size_; }
  bool is_last_rank() const { return rank_ + 1 == world_size_; }
  int step() const { return moment_->step; }
  int micro_batch() const { return moment_->micro_batch; }
  int micro_batches() const { return moment_->micro_batches; }
  bool has_begun() const { return step() >= 0; }
  // To be called by the fault when it changed something.
  void acted();
  void acted_on(std::size_t parameter);  // index of the engine's table
  const Act& act() const { return act_; }

 private:
  int rank_, world_size_;
  std::shared_ptr<const Moment> moment_;
  std::vector<std::string> parameters_;
  Act act_;
};

struct Fault {
  std::string name;                          // "accumulation.overwrites", "mutant.average.rolled"
  std::string what;                          // in words, for the report
  std::string seam;                          // kSeams
  std::vector<std::string> bugs;             // "DS-01"; empty: a mutant
  std::string phase;                         // where it shows first: kPhases
  std::function<void(FaultContext&)> plant;  // fills seams()
  // Wraps the communicator; null: nothing is wrapped.
  std::function<std::shared_ptr<comm::Communicator>(std::shared_ptr<comm::Communicator>,
                                                    FaultContext&)>
      wrap;
};

// communicator partition bucket reduction accumulation loss_scale clip optimizer parameter
// parallel completion checkpoint
extern const std::vector<std::string> kSeams;
// "forward" (a loss, or a parameter that a forward read), "gradient" (the average), "norm", "clip",
// "update" (masters, states), "parameter" (what is published), "scale" (loss scale, skipped steps)
extern const std::vector<std::string> kPhases;

const std::vector<Fault>& catalogue();
const Fault& fault_named(const std::string& name);
std::vector<std::string> fault_names();

struct OpenBug {
  std::string id;   // DS-11
  std::string why;  // pipeline parallelism: the engine has none
};
const std::vector<OpenBug>& open_bugs();

// A fault in this process, while it lives. One at a time.
class Planted {
 public:
  Planted(const std::string& name, int rank, int world_size, std::shared_ptr<const Moment> moment,
          std::vector<std::string> parameters);
  ~Planted();
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;
  std::shared_ptr<comm::Communicator> wrap(std::shared_ptr<comm::Communicator> real);
  const Act& act() const { return context_.act(); }

 private:
  const Fault& fault_;
  FaultContext context_;
};

}  // namespace equigrad::conformance::faults
