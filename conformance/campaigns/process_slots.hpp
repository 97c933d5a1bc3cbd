// TaskSlots: requests to a pool of ranks, as many at once as there are process slots.
//
//   slot 0: ranks 0 1 2 3      slot 1: ranks 4 5 6 7      ...
//
// Invariants: a slot has one request at a time and asks for its next one when that has ended; every
// request that was begun is answered by a call of done(), unless an interrupt came first.
// Units: seconds of wall clock.
// Errors: equigrad::Error when the pool cannot start.
// Depends on: ranks/pool.hpp, campaigns/slots.hpp (sources only). No torch.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "conformance/ranks/pool.hpp"

namespace equigrad::conformance {

struct Task {
  int world = 1;
  nlohmann::json request;
  std::chrono::milliseconds timeout{0};
  std::function<void(const std::vector<ranks::Outcome>& outcomes, double seconds)> done;
};

class TaskSlots {
 public:
  // Slots 0: one more than there are cores, if their ranks fit into memory.
  TaskSlots(int slots, int widest, const ranks::Handler& serve);
  std::size_t size() const { return slots_.size(); }
  const std::string& directory() const { return pool_.directory(); }
  // Until `next` has nothing for any slot; it is asked again after each answer. `tick` is called
  // now and then.
  void run(const std::function<std::optional<Task>(std::size_t slot)>& next,
           const std::function<void()>& tick);

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    int job = -1;
    Task task;
    Clock::time_point start;
  };
  void start(std::size_t slot, Task task);

  int widest_;
  std::vector<Slot> slots_;
  ranks::Pool pool_;
};

}  // namespace equigrad::conformance
