#include "conformance/campaigns/process_slots.hpp"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "conformance/campaigns/slots.hpp"
#include "conformance/ranks/interrupt.hpp"

namespace equigrad::conformance {
namespace {

constexpr std::chrono::milliseconds kPatience{1'000}, kGrace{2'000};

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<long long>(1e3 * seconds));
}

// The contexts of processes on one CUDA device take turns.
constexpr std::size_t kMostOnCuda = 4;

std::size_t slot_count(const SlotOptions& options) {
  auto wanted = options.slots > 0 ? static_cast<std::size_t>(options.slots)
                                  : slots_for(std::thread::hardware_concurrency(),
                                              available_memory_bytes(), options.widest);
  if (options.slots == 0 && options.device != nullptr) wanted = std::min(wanted, kMostOnCuda);
  return std::clamp<std::size_t>(options.most, 1, wanted);
}

}  // namespace

ProcessSlots::ProcessSlots(const SlotOptions& options)
    : widest_(options.widest),
      timeout_scale_(options.timeout_scale),
      slots_(slot_count(options)),
      pool_(static_cast<int>(slots_.size()) * widest_, options.serve,
            {milliseconds_of(kCaseTimeout_s * timeout_scale_), kGrace, false, options.device}),
      served_by_(static_cast<std::size_t>(pool_.size())) {}

void ProcessSlots::start(std::size_t slot, Task task) {
  std::vector<int> ranks;
  for (int rank = 0; rank < task.world; ++rank)
    ranks.push_back(static_cast<int>(slot) * widest_ + rank);
  const int job =
      pool_.start(ranks, task.request, milliseconds_of(task.timeout_s * timeout_scale_));
  slots_[slot] = {job, std::move(task), Clock::now()};
}

void ProcessSlots::finish(const ranks::Finished& finished) {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& one) { return one.job == finished.job; });
  slot->job = -1;
  const Task task = std::move(slot->task);
  ended_ = finished.ranks;
  task.done(finished.outcomes, std::chrono::duration<double>(Clock::now() - slot->start).count());
  note(finished, task.request);
}

// After anything but answers the pool has forked the ranks anew.
void ProcessSlots::note(const ranks::Finished& finished, const nlohmann::json& request) {
  const std::string what = request.is_object() ? request.value("do", "") : "";
  const bool is_case = (what == "case" || what == "contract") && request.contains("id");
  const bool is_ok = ranks::all_ok(finished.outcomes);
  if (is_case && is_ok) served_.push_back(request.at("id"));
  for (const int rank : finished.ranks) {
    auto& served = served_by_[static_cast<std::size_t>(rank)];
    if (!is_ok)
      served.clear();
    else if (is_case)
      served.push_back(served_.size() - 1);
  }
}

std::vector<std::string> ProcessSlots::before() const {
  std::set<std::size_t> numbers;
  for (const int rank : ended_) {
    const auto& served = served_by_[static_cast<std::size_t>(rank)];
    numbers.insert(served.begin(), served.end());
  }
  std::vector<std::string> ids;
  for (const std::size_t number : numbers) ids.push_back(served_[number]);
  return ids;
}

void ProcessSlots::renew() {
  for (int rank = 0; rank < widest_; ++rank) {
    pool_.renew(rank);
    served_by_[static_cast<std::size_t>(rank)].clear();
  }
}

void ProcessSlots::run(const std::function<std::optional<Task>(std::size_t slot)>& next,
                       const std::function<void()>& tick) {
  while (ranks::interrupted() == 0) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].job >= 0) continue;
      if (auto task = next(slot)) start(slot, std::move(*task));
    }
    if (pool_.jobs() == 0) return;
    if (const auto finished = pool_.wait(kPatience)) finish(*finished);
    tick();
  }
}

std::optional<Outcomes> ProcessSlots::ask(int world, const nlohmann::json& request,
                                          double timeout_s) {
  std::optional<Outcomes> answer;
  bool is_asked = false;
  run(
      [&](std::size_t) -> std::optional<Task> {
        if (std::exchange(is_asked, true)) return std::nullopt;
        return Task{world, request, timeout_s,
                    [&](const Outcomes& outcomes, double) { answer = outcomes; }};
      },
      [] {});
  return answer;
}

}  // namespace equigrad::conformance
