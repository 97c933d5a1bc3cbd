#include "engine/parameter/use_trace.hpp"

#include <algorithm>
#include <utility>

namespace equigrad::parameter {
namespace {

constexpr std::size_t kMostUses = std::size_t{1} << 20;

}  // namespace

UseTrace::UseTrace(std::vector<int64_t> numel_by_page, const std::vector<bool>& always,
                   int64_t budget_numel)
    : numel_by_page_(std::move(numel_by_page)),
      planned_numel_(numel_by_page_),
      room_numel_(budget_numel),
      last_position_(numel_by_page_.size(), 0) {
  for (std::size_t page = 0; page < always.size(); ++page) {
    if (!always[page]) continue;
    room_numel_ = std::max<int64_t>(room_numel_ - planned_numel_[page], 0);
    planned_numel_[page] = 0;
  }
}

void UseTrace::use(std::size_t page) {
  if (!seen_.empty() && seen_.back() == page) return;
  const std::size_t position = seen_.size();
  if (in_step_ && (position >= learnt_.size() || learnt_[position] != page)) in_step_ = false;
  if (!in_step_ && seen_.size() == kMostUses) return;  // a long evaluation: not worth learning
  seen_.push_back(page);
  last_position_[page] = position;
}

void UseTrace::end_cycle() {
  const bool followed = in_step_ && seen_.size() == learnt_.size();
  if (!followed && !seen_.empty()) {
    learnt_ = std::move(seen_);
    distance_numel_.assign(learnt_.size(), kNever);
    std::vector<int64_t> used_before(numel_by_page_.size(),
                                     kNever);  // elements used up to a page's next use
    int64_t used_numel = 0;                    // counted from the end
    for (std::size_t i = learnt_.size(); i-- > 0;) {
      const std::size_t page = learnt_[i];
      if (used_before[page] != kNever) distance_numel_[i] = used_numel - used_before[page];
      used_numel += numel_by_page_[page];
      used_before[page] = used_numel;
    }
    plan_ = plan_paging(learnt_, planned_numel_, room_numel_);
  }
  seen_.clear();
  in_step_ = !learnt_.empty();
}

int64_t UseTrace::reuse_distance_numel(std::size_t page) const {
  return distance_numel_[last_position_[page]];
}

bool UseTrace::stays(std::size_t page) const { return plan_.stays[last_position_[page]]; }

// What is fetched ahead takes room from now until it is used; from then on the plan has it.
std::vector<std::size_t> UseTrace::next_pages(int64_t budget_numel) const {
  std::vector<std::size_t> pages;
  std::vector<bool> taken(numel_by_page_.size(), false);
  int64_t numel = 0;
  const auto left_numel = [this](std::size_t i) { return room_numel_ - plan_.live_numel[i]; };
  int64_t room_numel = seen_.empty() ? room_numel_ : left_numel(seen_.size() - 1);
  for (std::size_t i = seen_.size(); i < learnt_.size(); ++i) {
    const std::size_t page = learnt_[i];
    if (!taken[page]) {
      const int64_t fetched_numel = plan_.fetches[i] ? planned_numel_[page] : 0;
      const bool is_next = i == seen_.size();
      numel += numel_by_page_[page];
      const bool fits = fetched_numel == 0 || fetched_numel <= room_numel || is_next;
      if (numel > budget_numel || !fits) break;
      room_numel -= fetched_numel;
      taken[page] = true;
      pages.push_back(page);
    }
    room_numel = std::min(room_numel, left_numel(i));
  }
  return pages;
}

}  // namespace equigrad::parameter
