// Page: one parameter of which this rank keeps a shard, and whose whole comes and goes.
//
//   Released --(a gather starts)--> Arriving --arrive()--> Live --drop()--> Released
//
// Pages of one round that are small are sent in one collective and are copied out of it; a large
// one is sent alone, and its memory becomes the parameter's. One that is not contiguous is copied
// out of it into memory of its strides. A resident page keeps its memory: what is small,
// contiguous, in the type it is sent in, and persistent, is copied to where it has always been.
//
// Invariants: the model's tensor and its storage stay the same objects, with the same version
// counter; only the storage's data pointer changes, or, of a resident, what it points to, so every
// view and every saved tensor of a graph sees the data while the page is Live, and an access in any
// other state throws instead of reading what is not there. A resident is in another state only
// within one call of its keeper. A page that an operator reads (pins > 0) is not dropped.
// Shapes: shard [shard_numel]; a gather's rows [world, columns].
// Units: bytes, elements.
// Errors: those of the communicator.
// Depends on: comm/communicator, kernels/copy_rows, layout/parameter_table, memory/ledger.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/comm/communicator.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::parameter {

// One all-gather of the shards of one or more pages, side by side, of one type.
class PageGather {
 public:
  PageGather(const std::vector<at::Tensor>& shards, comm::Communicator& communicator,
             memory::Ledger& ledger);
  ~PageGather();
  PageGather(const PageGather&) = delete;
  PageGather& operator=(const PageGather&) = delete;

  void wait();
  // The flat whole of the page in columns [offset, offset + shard_numel), as it was sent; taken
  // over, not copied, if it is alone.
  at::Tensor take(int64_t offset, int64_t shard_numel);
  // The same into `whole`, without the padding.
  void copy_to(const at::Tensor& whole, int64_t offset, int64_t shard_numel) const;

 private:
  int64_t world_size_;
  at::Tensor mine_;
  at::Tensor rows_;
  comm::PendingPtr pending_;
  memory::Ledger& ledger_;
  int64_t bytes_;
};

struct Page {
  enum class State { Released, Arriving, Live };

  at::Tensor tensor;  // the model's
  at::Tensor shard;   // in the type it is sent in
  int64_t bytes = 0;  // of the whole; padding included where it is what a gather received
  bool persistent = false;
  bool resident = false;
  State state = State::Released;
  int pins = 0;          // operators that are reading it
  int64_t last_use = 0;  // on the keeper's clock of operators
  std::shared_ptr<PageGather> gather;
  int64_t offset = 0;  // in the gather's columns

  // Travels with others.
  bool is_small() const {
    return tensor.numel() < layout::kAloneNumel && tensor.is_floating_point();
  }
  bool absent() const { return state == State::Released && pins == 0; }
  bool may_drop() const { return state == State::Live && !persistent && pins == 0; }
  // Waits for the gather under way, if any, and moves its data into the model's tensor.
  void arrive(memory::Ledger& ledger);
  // Frees the data, but that of a resident page.
  void drop(memory::Ledger& ledger);
  // Fills the data with NaN unless the page is Live: what an operator reads when the gather has
  // failed.
  void poison(memory::Ledger& ledger);
  // Frees the data of a tensor that has come from elsewhere and is in no ledger.
  void disown();

 private:
  void fill(const at::Tensor& whole, memory::Ledger& ledger);
  at::Tensor laid_out(const at::Tensor& rows) const;
};

}  // namespace equigrad::parameter
