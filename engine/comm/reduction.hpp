// Reduction: sums over ranks whose order is the engine's, not the backend's.
//
// Pinned: every rank sends slice r of its buffer to rank r (all-to-all), the owner adds the W
// contributions in a fixed binary tree in fp32 (kernels/tree_sum.hpp) and rounds once to the result
// type. The bytes sent are those of a ring reduce-scatter. An all-reduce gathers the slices
// afterwards; of two ranks each sends the other all it has instead, as many bytes in one message,
// and both add. Exact: the sums of kernels/exact_sum.hpp, slice by slice; what is sent may be
// running sums (kExactSum). On several hosts pinned sums go by levels, within a host and then
// between hosts (comm/levels.hpp), in the same tree to the same bits. Native: the backend's own
// collective, in the buffer's type, then one rounding.
//
// Invariants: pinned sums depend on the contributions and on W only: not on bucket size, position
// or timing; exact ones on the contributions only. Nothing is averaged here. The buffer must stay
// untouched until finish().
// Shapes: reduce_scatter_sum [W * n] -> [n]; all_reduce_sum [W * n] -> [W * n], the buffer padded
// to a multiple of W.
// Errors: those of the communicator.
// Depends on: comm/communicator, kernels, config's ReductionOrder.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>

#include "engine/comm/communicator.hpp"
#include "engine/comm/level_sum.hpp"
#include "engine/config/config.hpp"

namespace equigrad::comm {

// A reduction under way. finish() waits and gives the sum; it is called once, by all ranks at the
// same place, and may use the buffer as its memory; a sum that is not native is written `into` a
// tensor of its shape and type, if one is given. drop() waits for what has been sent and sends no
// more: a rank that gives up may call it before the others do.
class Reduction {
 public:
  static Reduction reduce_scatter_sum(Communicator& communicator, ReductionOrder order,
                                      at::Tensor buffer, at::ScalarType result_dtype);
  static Reduction all_reduce_sum(Communicator& communicator, ReductionOrder order,
                                  at::Tensor buffer, at::ScalarType result_dtype);
  at::Tensor finish(const at::Tensor& into = {});
  void drop();

  // Of one row of a piece on a CPU: 1 MiB in fp32, so what arrives is in the caches when it is
  // added.
  static constexpr int64_t kPieceNumel = int64_t{1} << 18;
  // Pieces on their way; one more is being added. What is longer sends the rest within finish().
  static constexpr int kInFlight = 4;

 private:
  enum class Kind { Scatter, Both, Slices, NativeScatter, NativeAll };
  // What is not native goes piece by piece: while one is added, the next one is sent, and what is
  // received takes little memory. The order of additions is element by element, so the cut is free.
  struct Piece {
    int64_t begin;              // in the sum
    int64_t numel;              // of a row of what is received
    at::Tensor own;             // of two ranks that trade: this one's row, in the buffer
    Workspace::Block received;  // [W, numel], or the other's row
    PendingPtr pending;
    std::unique_ptr<LevelSum> by_levels;  // in place of the two above
  };
  Reduction(Communicator& communicator, Kind kind, ReductionOrder order, at::Tensor buffer,
            at::ScalarType result_dtype);
  void send_piece();
  bool goes_by_levels() const;
  void add_into(const at::Tensor& sum, Piece& piece) const;
  at::Tensor wait_for_sum(const at::Tensor& into);
  at::Tensor finish_rows(const at::Tensor& into);
  at::Tensor finish_slices(const at::Tensor& into);
  at::Tensor room_for_all() const;

  Communicator* communicator_;
  Kind kind_;
  ReductionOrder order_;
  at::ScalarType result_dtype_;
  at::Tensor buffer_;  // [W * n] what this rank contributes
  at::Tensor native_;  // [n] native scatter: the sum
  PendingPtr pending_;
  std::deque<Piece> pieces_;  // sent, not yet added
  int64_t sent_numel_ = 0;    // of a row
};

// The rows of `contributions` [rows, n] added in the pinned order, rounded once.   -> [n]
at::Tensor tree_sum(const at::Tensor& contributions, at::ScalarType result_dtype);

}  // namespace equigrad::comm
