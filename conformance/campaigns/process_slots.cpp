#include "conformance/campaigns/process_slots.hpp"

#include <thread>
#include <utility>

#include "conformance/campaigns/slots.hpp"
#include "conformance/ranks/interrupt.hpp"

namespace equigrad::conformance {
namespace {

std::size_t slot_count(int slots, int widest) {
  if (slots > 0) return static_cast<std::size_t>(slots);
  return slots_for(std::thread::hardware_concurrency(), available_memory_bytes(), widest);
}

}  // namespace

TaskSlots::TaskSlots(int slots, int widest, const ranks::Handler& serve)
    : widest_(widest),
      slots_(slot_count(slots, widest)),
      pool_(static_cast<int>(slots_.size()) * widest, serve,
            {std::chrono::milliseconds(60'000), std::chrono::milliseconds(2'000), false}) {}

void TaskSlots::start(std::size_t slot, Task task) {
  std::vector<int> ranks;
  for (int rank = 0; rank < task.world; ++rank)
    ranks.push_back(static_cast<int>(slot) * widest_ + rank);
  const int job = pool_.start(ranks, task.request, task.timeout);
  slots_[slot] = {job, std::move(task), Clock::now()};
}

void TaskSlots::run(const std::function<std::optional<Task>(std::size_t slot)>& next,
                    const std::function<void()>& tick) {
  while (ranks::interrupted() == 0) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].job >= 0) continue;
      if (auto task = next(slot)) start(slot, std::move(*task));
    }
    if (pool_.jobs() == 0) return;
    const auto finished = pool_.wait(std::chrono::milliseconds(1'000));
    tick();
    if (!finished) continue;
    for (auto& slot : slots_) {
      if (slot.job != finished->job) continue;
      slot.job = -1;
      const Task task = std::move(slot.task);
      task.done(finished->outcomes,
                std::chrono::duration<double>(Clock::now() - slot.start).count());
    }
  }
}

}  // namespace equigrad::conformance
