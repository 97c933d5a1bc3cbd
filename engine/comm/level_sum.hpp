// LevelSum: a reduce-scatter in the pinned order, level by level (comm/levels.hpp).
//
// Invariants: the first level is under way when it is made, the others go within finish(): all
// ranks finish theirs in one order, and what one of them drops all drop. Between two ranks the
// messages of all sums go under one tag, in that order. Exact sums take one level of all, and not
// this.
// Shapes: rows [W, n], row r for rank r, which may lie apart and stay untouched until finish();
// sum [n].
// Errors: those of the communicator.
// Depends on: comm/levels, comm/communicator, kernels/tree_sum.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "engine/comm/communicator.hpp"
#include "engine/comm/levels.hpp"

namespace equigrad::comm {

class LevelSum {
 public:
  LevelSum(Communicator& communicator, const at::Tensor& rows);
  void finish(const at::Tensor& sum);
  // Waits for what has been sent, and sends no more.
  void drop();

 private:
  void send(const at::Tensor& rows);
  void wait();

  Communicator* communicator_;
  std::vector<Level> levels_;
  std::size_t level_ = 0;
  Workspace::Block sent_, received_;
  std::vector<PendingPtr> pending_;
};

// The rows, [n] each on the CPU, added in the pinned order and rounded once.
void tree_sum_into(const at::Tensor& sum, const std::vector<at::Tensor>& rows);

}  // namespace equigrad::comm
