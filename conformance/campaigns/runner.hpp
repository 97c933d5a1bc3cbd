// Runner: a selection of the matrix over process slots, as one record.
//
//   planted faults -> for every tuple: its twin, then its cases, as many at once as there are slots
//     -> the first failures once more, alone
//
// Invariants: every case given is in the record once, in the order given, with a verdict; a run
// that is interrupted records what it has, the rest as not run. A tuple's twin is made once, and
// removed when its last case has ended.
// Units: seconds of wall clock.
// Errors: equigrad::Error when the pool cannot start. When the planted faults got no answer
// (self_check.hpp) no case is begun, and Run::failure says why; where a case of theirs failed
// without a fault, Run::engine_failure says so and the cases are run.
// Depends on: process_slots.hpp, alone.hpp, matrix.hpp, judge.hpp, program.hpp, reports/record.hpp.
// No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/campaigns/alone.hpp"
#include "conformance/campaigns/kept_failures.hpp"
#include "conformance/campaigns/process_slots.hpp"
#include "conformance/campaigns/progress.hpp"
#include "conformance/campaigns/run_rows.hpp"
#include "conformance/cases/matrix.hpp"
#include "conformance/on_rank/program.hpp"
#include "conformance/verdict/judge.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

struct RunOptions {
  std::vector<CaseSpec> cases;
  uint64_t seed = 1;
  DataFiles data;
  std::string keep;           // folder of the failures (kept_failures.hpp); empty: none is kept
  bool keep_tensors = true;   // there; false: the configurations only
  std::string replay_prefix;  // "equigrad run"; the id and the seed follow
  std::string replay_suffix;  // such as " --data-dir D"
  double timeout_scale = 1;
  bool quiet = false;
  bool fail_fast = false;  // after a case that fails no other is begun
  int slots = 0;           // 0: as campaigns/slots.hpp says
  std::string fault;       // planted into every case; for trying the failure path
  nlohmann::json knobs = nlohmann::json::object();  // on_rank/run.hpp
  std::shared_ptr<Progress> progress = {};          // of all parts; null: each has one of its own
  ranks::Handler serve = conformance::serve;        // what the ranks run
  ranks::TakeDevice device = nullptr;               // null: the CPU
};

class MatrixRun {
 public:
  // `alone` gets the cases that fail; null: they are not repeated.
  MatrixRun(const RunOptions& options, ProcessSlots& slots, Alone* alone = nullptr);
  MatrixRun(const MatrixRun&) = delete;
  // Whether faults are seen; where they got no answer no case is begun any more.
  void check_itself();
  // The cases before `end` that have not been run yet.
  void run_until(std::size_t end);
  // What is known so far, with the first `count` cases; and all that the record has.
  reports::Run so_far(std::size_t count) const;
  const std::string& failure() const { return run_.failure; }
  // A case failed, and the options say that no other is begun then.
  bool is_over() const { return options_.fail_fast && failed_ > 0; }
  reports::Run take();

 private:
  // The cases that share a twin.
  struct Tuple {
    enum class Twin { Missing, Running, Ready, Failed };
    std::vector<std::size_t> cases;  // in their order
    std::size_t next = 0;            // of cases, to start
    std::size_t left = 0;            // of cases, to finish
    Twin twin = Twin::Missing;
    std::string path;
  };
  nlohmann::json request(const char* what, const std::string& id) const;
  std::string replay(const std::string& id) const;
  void require_a_device();
  void give_up(const std::string& reason);
  void make_tuples();
  bool has_a_case(const Tuple& tuple) const;
  std::optional<std::size_t> tuple_with(Tuple::Twin twin) const;
  std::optional<Task> next_task();
  nlohmann::json case_request(const std::string& id) const;
  void suspect(std::size_t number) const;
  Task twin_of(std::size_t index);
  Task case_of(std::size_t index);
  void finish_twin(Tuple& tuple, const Outcomes& outcomes);
  void finish_case(Tuple& tuple, std::size_t number, const Outcomes& outcomes, double seconds);
  void finish_tuple(Tuple& tuple);

  const RunOptions& options_;
  ProcessSlots& slots_;
  Alone* alone_;
  KeptFailures kept_;
  std::vector<Tuple> tuples_;
  std::vector<Judged> judged_;
  RunRows rows_;
  reports::Run run_;
  std::shared_ptr<Progress> progress_;
  std::size_t end_ = 0;  // cases from here on are not begun yet
  int64_t done_ = 0, failed_ = 0;
};

// What repeats failures of a run with these options.
Alone alone_of(const RunOptions& options);
// All of it. Fills in self_checks, engine_failure, cases, memory, underflow, seed, failure,
// interrupted, signal and wall_s.
reports::Run run_matrix(const RunOptions& options);

}  // namespace equigrad::conformance
