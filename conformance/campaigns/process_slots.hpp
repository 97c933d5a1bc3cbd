// ProcessSlots: requests to a pool of ranks, as many at once as there are process slots. The one
// loop in which campaigns wait for answers: a campaign says what to ask next and what to do with an
// answer. It keeps the books of which cases a rank process has served.
//
//   slot 0: ranks 0 1 2 3      slot 1: ranks 4 5 6 7      ...
//
// Invariants: a slot has one request at a time and asks for its next one when that has ended; every
// request that was begun is answered by a call of done(), unless an interrupt came first. Of two
// campaigns one after the other neither sees the other's requests.
// Units: seconds of wall clock; time-outs are multiplied by timeout_scale.
// Errors: equigrad::Error when the pool cannot start.
// Depends on: ranks/pool.hpp, campaigns/slots.hpp (sources only). No torch.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "conformance/ranks/pool.hpp"

namespace equigrad::conformance {

// Why a case was not begun.
constexpr const char* kNotAfterAFailure =
    "not begun: another case failed, and --fail-fast was given";

constexpr double kCaseTimeout_s = 60, kTwinTimeout_s = 180;

using Outcomes = std::vector<ranks::Outcome>;

struct Task {
  int world = 1;
  nlohmann::json request;
  double timeout_s = kCaseTimeout_s;
  std::function<void(const Outcomes& outcomes, double seconds)> done;
};

struct SlotOptions {
  int slots = 0;   // 0: one more than there are cores, if their ranks fit into memory; on CUDA 4
  int widest = 4;  // ranks of a slot
  std::size_t most = std::numeric_limits<std::size_t>::max();  // that have anything to do
  double timeout_scale = 1;
  ranks::Handler serve;
  ranks::TakeDevice device = nullptr;  // null: the CPU
};

class ProcessSlots {
 public:
  explicit ProcessSlots(const SlotOptions& options);
  std::size_t size() const { return slots_.size(); }
  const std::string& directory() const { return pool_.directory(); }
  // Until `next` has nothing for any slot; it is asked again after each answer. `tick` is called
  // after an answer, and now and then.
  void run(const std::function<std::optional<Task>(std::size_t slot)>& next,
           const std::function<void()>& tick);
  // The cases that the ranks of the request whose done() is being called had served since they were
  // forked, in order: ids of requests that do "case" or "contract".
  std::vector<std::string> before() const;
  // Fresh processes for the ranks of the first slot, while nothing runs.
  void renew();
  // One request of the first slot, while nothing else runs; nothing when interrupted.
  std::optional<Outcomes> ask(int world, const nlohmann::json& request,
                              double timeout_s = kCaseTimeout_s);

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    int job = -1;
    Task task;
    Clock::time_point start;
  };
  void start(std::size_t slot, Task task);
  void finish(const ranks::Finished& finished);
  void note(const ranks::Finished& finished, const nlohmann::json& request);

  int widest_;
  double timeout_scale_;
  std::vector<Slot> slots_;
  ranks::Pool pool_;
  std::vector<std::string> served_;                  // cases, in the order in which they ended
  std::vector<std::vector<std::size_t>> served_by_;  // by rank of the pool
  std::vector<int> ended_;                           // ranks of the request that ended last
};

}  // namespace equigrad::conformance
