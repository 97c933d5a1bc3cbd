#include "engine/parameter/use_trace.hpp"

#include <utility>

namespace equigrad::parameter {
namespace {

constexpr std::size_t kMostUses = std::size_t{1} << 20;

}  // namespace

UseTrace::UseTrace(std::vector<int64_t> numel_by_page)
    : numel_by_page_(std::move(numel_by_page)), last_position_(numel_by_page_.size(), 0) {}

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
  }
  seen_.clear();
  in_step_ = !learnt_.empty();
}

int64_t UseTrace::reuse_distance_numel(std::size_t page) const {
  return distance_numel_[last_position_[page]];
}

std::vector<std::size_t> UseTrace::next_pages(int64_t budget_numel) const {
  std::vector<std::size_t> pages;
  std::vector<bool> taken(numel_by_page_.size(), false);
  int64_t numel = 0;
  for (std::size_t i = seen_.size(); i < learnt_.size(); ++i) {
    const std::size_t page = learnt_[i];
    if (taken[page]) continue;
    numel += numel_by_page_[page];
    if (numel > budget_numel) break;
    taken[page] = true;
    pages.push_back(page);
  }
  return pages;
}

}  // namespace equigrad::parameter
