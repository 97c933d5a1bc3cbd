// Window sums: what a window must give for the passes that it had, by hand, at every stage.
//
// Invariants: nothing of the engine's sums is used but the plan's cut.
// Shapes: as windowed.hpp has them.
// Errors: none.   Depends on: windowed.hpp, layout/partition.
#pragma once

#include <vector>

#include "conformance/testing/windowed.hpp"

namespace equigrad::conformance {

struct Weighed {
  uint64_t pass;
  double weight = 1;
  int ranks = 100;  // the first so many contribute
};

// The documented sums, by hand.
inline at::Tensor average_of(const Windowed& it, std::size_t p,
                             const std::vector<Weighed>& passes) {
  const auto rounded = [&](const at::Tensor& x) { return x.to(it.kind.dtype).to(at::kFloat); };
  const auto of = [&](const Weighed& pass, int rank) {
    const auto full = contribution(p, pass.pass, rank, it.kind.dtype).to(at::kFloat);
    return rank < pass.ranks ? full : at::zeros_like(full);
  };
  std::vector<at::Tensor> rows;
  at::Tensor sum;
  if (it.kind.each) {
    for (const auto& pass : passes) {
      rows.clear();
      for (int rank = 0; rank < it.world; ++rank) rows.push_back(of(pass, rank));
      const auto reduced = sum_of_tree(rows) * pass.weight;
      sum = rounded(sum.defined() ? sum + reduced : reduced);
    }
  } else {
    for (int rank = 0; rank < it.world; ++rank) {
      at::Tensor local;
      for (const auto& pass : passes) {
        const auto more = of(pass, rank) * pass.weight;
        local = rounded(local.defined() ? local + more : more);
      }
      rows.push_back(local);
    }
    sum = rounded(sum_of_tree(rows));
  }
  return it.padded_slice(p, sum * at::full({}, kFactor, at::kFloat));
}

}  // namespace equigrad::conformance
