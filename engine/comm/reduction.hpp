// Reduction: sums over ranks whose order is the engine's, not the backend's.
//
// Pinned: every rank sends slice r of its buffer to rank r (all-to-all), the owner adds the W
// contributions in a fixed binary tree in fp32 (kernels/tree_sum.hpp) and rounds once to the result
// type. The bytes on the wire are those of a ring reduce-scatter. Exact: the same, but the owner
// sums as kernels/exact_sum.hpp does, and what travels may be running sums (kExactSum). Native: the
// backend's own collective, in the buffer's type, then one rounding.
//
// Invariants: pinned sums depend on the contributions and on W only: not on bucket size, position
// or timing; exact ones on the contributions only. Nothing is averaged here. The buffer must stay
// untouched until finish(). Shapes: reduce_scatter_sum [W * n] -> [n]; all_reduce_sum [W * n] -> [W
// * n], the buffer padded to a multiple of W. Errors: those of the communicator. Depends on:
// comm/communicator, kernels, config's ReductionOrder.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>

#include "engine/comm/communicator.hpp"
#include "engine/config.hpp"

namespace equigrad::comm {

// A reduction under way. finish() waits and gives the sum; it is called once, and may use the
// buffer as its room.
class Reduction {
 public:
  static Reduction reduce_scatter_sum(Communicator& communicator, ReductionOrder order,
                                      at::Tensor buffer, at::ScalarType result_dtype);
  static Reduction all_reduce_sum(Communicator& communicator, ReductionOrder order,
                                  at::Tensor buffer, at::ScalarType result_dtype);
  at::Tensor finish();

 private:
  enum class Kind { Scatter, All, NativeScatter, NativeAll };
  // An all-reduce that is not native goes piece by piece: while one is added, the next one travels,
  // and what is received takes little room. The order of additions is element by element, so the
  // cut is free.
  struct Piece {
    int64_t begin;
    int64_t numel;
    Workspace::Room received;  // [numel] all contributions to this rank's slice of the piece
    PendingPtr pending;
  };
  Reduction(Communicator& communicator, Kind kind, ReductionOrder order, at::Tensor buffer,
            at::ScalarType result_dtype);
  at::Tensor sum_of(const Workspace::Room& received, int64_t numel) const;
  void send_piece();
  at::Tensor finish_pieces();

  Communicator* communicator_;
  Kind kind_;
  ReductionOrder order_;
  at::ScalarType result_dtype_;
  at::Tensor buffer_;         // [W * n] what this rank contributes
  Workspace::Room received_;  // [W * n] scatter: all contributions to this rank's slice
  at::Tensor native_;         // [n] native scatter: the sum
  PendingPtr pending_;
  std::deque<Piece> pieces_;  // sent, not yet added
  int64_t sent_numel_ = 0;
};

// The rows of `contributions` [rows, n] added in the pinned order, rounded once.   -> [n]
at::Tensor tree_sum(const at::Tensor& contributions, at::ScalarType result_dtype);

}  // namespace equigrad::comm
