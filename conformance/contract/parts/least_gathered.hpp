// Least gathered: what schedules of whole pages gather under a budget, each tried by hand.
//
// Invariants: a page is whole while it is used; what stays beside it fits into the budget.
// Units: elements; bit i of `stays` is of the use at position i; up to 20 uses.
// Errors: none.   Depends on: the C++ standard library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace equigrad::conformance::contract {

// A schedule, told by what stays after which use; -1: it does not fit.
inline int64_t gathered_by_hand(const std::vector<std::size_t>& uses,
                                const std::vector<int64_t>& sizes, int64_t budget, uint64_t stays) {
  int64_t gathered = 0;
  std::vector<bool> here(sizes.size(), false);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const auto page = uses[i];
    if (!here[page]) gathered += sizes[page];
    here[page] = true;
    int64_t others = 0;
    for (std::size_t other = 0; other < sizes.size(); ++other)
      if (here[other] && other != page) others += sizes[other];
    if (others > std::max<int64_t>(budget - sizes[page], 0)) return -1;
    const bool comes_again = std::find(uses.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                       uses.end(), page) != uses.end();
    here[page] = (stays >> i & 1) != 0;
    if (here[page] && !comes_again) return -1;
  }
  return gathered;
}

inline int64_t least_by_hand(const std::vector<std::size_t>& uses,
                             const std::vector<int64_t>& sizes, int64_t budget) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (uint64_t stays = 0; stays < uint64_t{1} << uses.size(); ++stays) {
    const int64_t gathered = gathered_by_hand(uses, sizes, budget, stays);
    if (gathered >= 0) least = std::min(least, gathered);
  }
  return least;
}

}  // namespace equigrad::conformance::contract
