// Paging plan: of a known order of uses, which pages stay whole between two of them, so that as
// little as possible is gathered under a budget of live elements.
//
// Belady's rule, on single elements: when there is no room, those go whose next use is farthest
// away. No schedule gathers less, but a page may have to go in part. Where one does, two smaller
// problems remain, with the page kept and with it gone: branch and bound, until the best schedule
// of whole pages is found and proven, or kMostVisits uses have been looked at. Of pages of one size
// the rule alone is the best. What the plan gathers and what no schedule can gather less than are
// both told, `gathered_numel` and `least_numel`: equal, where the plan is proven to be the best.
//
//   uses      0 1 2 0 1 2     budget 2 pages: 0 stays, 1 and 2 come twice
//
// Invariants: a page is whole while it is used, whatever the budget; pages that are used once more
// may stay, others go at once; least_numel <= gathered_numel. Equal uses give equal plans.
// Units: elements; positions count uses from 0.
// Errors: none.
// Sources: L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966;
// A. H. Land, A. G. Doig, An automatic method of solving discrete programming problems, 1960.
// Depends on: the C++ standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace equigrad::parameter {

// About 10 ms, once for an order of uses.
inline constexpr int64_t kMostVisits = 200'000;

struct PagingPlan {
  std::vector<bool> stays;          // by position: the page stays until its next use
  std::vector<bool> fetches;        // by position: the page has to be gathered for this use
  std::vector<int64_t> live_numel;  // by position: what is whole while this page is used
  int64_t gathered_numel = 0;       // in one run through the uses
  int64_t least_numel = 0;          // no schedule gathers less
};

// Pages of 0 elements take part for nothing: those that are whole all the time.
PagingPlan plan_paging(const std::vector<std::size_t>& uses,
                       const std::vector<int64_t>& numel_by_page, int64_t budget_numel,
                       int64_t most_visits = kMostVisits);

}  // namespace equigrad::parameter
