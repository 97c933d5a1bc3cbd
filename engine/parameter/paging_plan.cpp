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

// What becomes of a page after the use at a position: as the rule has it, or as it was decided.
enum class Fate : unsigned char { Free, Stays, Goes };

struct Problem {
  const std::vector<std::size_t>& uses;
  const std::vector<int64_t>& numel_by_page;
  int64_t budget_numel;
  std::vector<std::size_t> next, before;  // by position: the page's next use, and the one before
};

// What is here between uses and may go, in part, the page that is used last of all in front.
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
  void shrink(int64_t most_numel) {
    while (numel_ > most_numel && !order_.empty()) {
      const auto page = order_.rbegin()->second;
      put(page, std::max<int64_t>(held_[page] - (numel_ - most_numel), 0), next_[page]);
    }
  }

 private:
  std::vector<int64_t> held_;
  std::vector<std::size_t> next_;
  std::set<std::pair<std::size_t, std::size_t>> order_;
  int64_t numel_ = 0;
};

// A schedule in which pages may stay in part, no worse than any that obeys `fates`.
struct Relaxed {
  bool fits = true;
  int64_t gathered_numel = 0;  // by it
  int64_t whole_numel = 0;     // if what would stay in part goes
  std::vector<bool> stays;     // by position: as a whole
  std::size_t split = kNone;   // the position after which most elements stay, of a page in part
};

Relaxed relax(const Problem& problem, const std::vector<Fate>& fates) {
  Relaxed relaxed;
  relaxed.stays.assign(problem.uses.size(), false);
  Live live(problem.numel_by_page.size());
  int64_t staying_numel = 0, most_split_numel = 0;  // of pages whose fate is to stay
  for (std::size_t i = 0; i < problem.uses.size(); ++i) {
    const std::size_t page = problem.uses[i], before = problem.before[i];
    const int64_t numel = problem.numel_by_page[page];
    const bool was_decided = before != kNone && fates[before] == Fate::Stays;
    const int64_t held = was_decided ? numel : live.held(page);
    if (was_decided) staying_numel -= numel;
    live.take(page);
    if (before != kNone) relaxed.stays[before] = held == numel;
    if (held != 0 && held != numel && held > most_split_numel) {
      relaxed.split = before;
      most_split_numel = held;
    }
    relaxed.gathered_numel += numel - held;
    relaxed.whole_numel += held == numel ? 0 : numel;
    // A page is whole while it is used, whatever the budget.
    const int64_t room_numel = std::max<int64_t>(problem.budget_numel - numel, 0);
    if (staying_numel > room_numel) relaxed.fits = false;
    live.shrink(room_numel - staying_numel);
    if (problem.next[i] == kNone) continue;
    if (fates[i] == Fate::Stays) staying_numel += numel;
    if (fates[i] == Fate::Free) live.put(page, numel, problem.next[i]);
  }
  return relaxed;
}

struct Branch {
  std::vector<Fate> fates;
  int64_t bound_numel;  // no schedule that obeys them gathers less
};

// The schedule, and what is proven of all.
struct Search {
  std::vector<bool> stays;
  int64_t gathered_numel = std::numeric_limits<int64_t>::max();
  int64_t least_numel = std::numeric_limits<int64_t>::max();
};

Search search(const Problem& problem, int64_t most_visits) {
  Search found;
  std::vector<Branch> open = {{std::vector<Fate>(problem.uses.size(), Fate::Free), 0}};
  int64_t visits = 0;
  const auto uses = static_cast<int64_t>(problem.uses.size());
  for (; !open.empty() && (visits == 0 || visits + uses <= most_visits); visits += uses) {
    const auto branch = std::move(open.back());
    open.pop_back();
    if (branch.bound_numel >= found.gathered_numel) continue;
    auto relaxed = relax(problem, branch.fates);
    if (!relaxed.fits || relaxed.gathered_numel >= found.gathered_numel) continue;
    if (relaxed.whole_numel < found.gathered_numel) {
      found.gathered_numel = relaxed.whole_numel;
      found.stays = relaxed.stays;
    }
    if (relaxed.split == kNone) continue;
    for (const auto fate : {Fate::Goes, Fate::Stays}) {  // the latter first
      open.push_back({branch.fates, relaxed.gathered_numel});
      open.back().fates[relaxed.split] = fate;
    }
  }
  found.least_numel = found.gathered_numel;
  for (const auto& branch : open)
    found.least_numel = std::min(found.least_numel, branch.bound_numel);
  return found;
}

}  // namespace

PagingPlan plan_paging(const std::vector<std::size_t>& uses,
                       const std::vector<int64_t>& numel_by_page, int64_t budget_numel,
                       int64_t most_visits) {
  PagingPlan plan;
  if (uses.empty()) return plan;
  Problem problem{uses, numel_by_page, budget_numel, next_uses(uses, numel_by_page.size()), {}};
  problem.before.assign(uses.size(), kNone);
  for (std::size_t i = 0; i < uses.size(); ++i)
    if (problem.next[i] != kNone) problem.before[problem.next[i]] = i;
  const auto found = search(problem, most_visits);
  plan.stays = found.stays;
  plan.gathered_numel = found.gathered_numel;
  plan.least_numel = found.least_numel;
  plan.live_numel.assign(uses.size(), 0);
  int64_t staying_numel = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const int64_t numel = numel_by_page[uses[i]];
    const bool was_here = problem.before[i] != kNone && plan.stays[problem.before[i]];
    if (was_here) staying_numel -= numel;
    plan.fetches.push_back(!was_here);
    plan.live_numel[i] = staying_numel + numel;
    if (plan.stays[i]) staying_numel += numel;
  }
  return plan;
}

}  // namespace equigrad::parameter
