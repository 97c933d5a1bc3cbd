#include "conformance/campaigns/process_slots.hpp"

#include <thread>
#include <utility>

#include "conformance/campaigns/slots.hpp"
#include "conformance/ranks/interrupt.hpp"

namespace equigrad::conformance {
namespace {

std::size_t lane_count(int lanes, int widest) {
  if (lanes > 0) return static_cast<std::size_t>(lanes);
  return lanes_for(std::thread::hardware_concurrency(), available_memory_bytes(), widest);
}

}  // namespace

TaskLanes::TaskLanes(int lanes, int widest, const ranks::Handler& serve)
    : widest_(widest),
      lanes_(lane_count(lanes, widest)),
      pool_(static_cast<int>(lanes_.size()) * widest, serve,
            {std::chrono::milliseconds(60'000), std::chrono::milliseconds(2'000), false}) {}

void TaskLanes::start(std::size_t lane, Task task) {
  std::vector<int> ranks;
  for (int rank = 0; rank < task.world; ++rank)
    ranks.push_back(static_cast<int>(lane) * widest_ + rank);
  const int job = pool_.start(ranks, task.request, task.timeout);
  lanes_[lane] = {job, std::move(task), Clock::now()};
}

void TaskLanes::run(const std::function<std::optional<Task>(std::size_t lane)>& next,
                    const std::function<void()>& tick) {
  while (ranks::interrupted() == 0) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      if (lanes_[lane].job >= 0) continue;
      if (auto task = next(lane)) start(lane, std::move(*task));
    }
    if (pool_.jobs() == 0) return;
    const auto finished = pool_.wait(std::chrono::milliseconds(1'000));
    tick();
    if (!finished) continue;
    for (auto& lane : lanes_) {
      if (lane.job != finished->job) continue;
      lane.job = -1;
      const Task task = std::move(lane.task);
      task.done(finished->outcomes,
                std::chrono::duration<double>(Clock::now() - lane.start).count());
    }
  }
}

}  // namespace equigrad::conformance
