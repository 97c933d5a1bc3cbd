#include "engine/parameter/paging_plan.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace equigrad::parameter {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

// By position: where its page is used next.
std::vector<std::size_t> next_uses(const std::vector<std::size_t>& uses, std::size_t pages) {
  std::vector<std::size_t> next(uses.size(), kNone), of_page(pages, kNone);
  for (std::size_t i = uses.size(); i-- > 0;) {
    next[i] = of_page[uses[i]];
    of_page[uses[i]] = i;
  }
  return next;
}

// What is here between uses, the page that is used last of all in front.
class Live {
 public:
  explicit Live(std::size_t pages) : held_(pages, 0), next_(pages, kNone) {}

  int64_t held(std::size_t page) const { return held_[page]; }
  int64_t numel() const { return numel_; }
  void put(std::size_t page, int64_t numel, std::size_t next) {
    take(page);
    if (numel == 0) return;
    held_[page] = numel;
    next_[page] = next;
    numel_ += numel;
    order_.emplace(next, page);
  }
  void take(std::size_t page) {
    if (held_[page] == 0) return;
    order_.erase({next_[page], page});
    numel_ -= std::exchange(held_[page], 0);
  }
  bool empty() const { return order_.empty(); }
  std::size_t farthest() const { return order_.rbegin()->second; }
  std::size_t next(std::size_t page) const { return next_[page]; }

 private:
  std::vector<int64_t> held_;
  std::vector<std::size_t> next_;
  std::set<std::pair<std::size_t, std::size_t>> order_;
  int64_t numel_ = 0;
};

// Elements that are gathered; `evict` takes at most `excess` of the farthest page away.
template <class Evict>
int64_t run_through(const std::vector<std::size_t>& uses, const std::vector<std::size_t>& next,
                    const std::vector<int64_t>& numel_by_page, int64_t budget_numel, Evict evict) {
  Live live(numel_by_page.size());
  int64_t gathered_numel = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const std::size_t page = uses[i];
    const int64_t numel = numel_by_page[page];
    gathered_numel += numel - live.held(page);
    live.take(page);
    while (live.numel() + numel > budget_numel && !live.empty())
      evict(live, live.numel() + numel - budget_numel);
    if (next[i] != kNone) live.put(page, numel, next[i]);
  }
  return gathered_numel;
}

}  // namespace

PagingPlan plan_paging(const std::vector<std::size_t>& uses,
                       const std::vector<int64_t>& numel_by_page, int64_t budget_numel) {
  PagingPlan plan;
  const auto next = next_uses(uses, numel_by_page.size());
  std::vector<std::size_t> before(uses.size(), kNone);  // by position: the page's use before
  for (std::size_t i = 0; i < uses.size(); ++i) {
    plan.stays.push_back(next[i] != kNone);
    if (next[i] != kNone) before[next[i]] = i;
  }
  plan.gathered_numel =
      run_through(uses, next, numel_by_page, budget_numel, [&](Live& live, int64_t /*excess*/) {
        const auto page = live.farthest();
        plan.stays[before[live.next(page)]] = false;
        live.take(page);
      });
  plan.least_numel =
      run_through(uses, next, numel_by_page, budget_numel, [](Live& live, int64_t excess) {
        const auto page = live.farthest();
        const auto rest = live.held(page) - excess;
        live.put(page, std::max<int64_t>(rest, 0), live.next(page));
      });
  plan.live_numel.assign(uses.size(), 0);
  int64_t staying_numel = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const int64_t numel = numel_by_page[uses[i]];
    const bool was_here = before[i] != kNone && plan.stays[before[i]];
    if (was_here) staying_numel -= numel;
    plan.fetches.push_back(!was_here);
    plan.live_numel[i] = staying_numel + numel;
    if (plan.stays[i]) staying_numel += numel;
  }
  return plan;
}

}  // namespace equigrad::parameter
