// Communicator: the seam between the engine and whatever carries its bytes (Gloo, NCCL, or a test's
// faulty one).
//
// Invariants: every rank issues the same collectives in the same order, from one thread; messages
// from one rank to another, send and receive, have no place in that order. An input is not written
// and an output not read before wait(). Nothing here knows an order of additions
// except all_reduce_sum and reduce_scatter_sum, which are the backend's own; the engine's
// documented order is built on all_to_all in comm/reduction.hpp.
// Shapes: flat contiguous tensors; n = elements per rank, W = world_size.
// Errors: CommunicationError naming the collective and this rank, when a peer is lost or the time-
// out passes (Gloo, and the words beside NCCL), and the lost rank where it is known. A collective
// of NCCL reports through its watchdog, which ends the process.
// Depends on: ATen tensors, comm/workspace. Only comm/*.cpp includes c10d.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/workspace.hpp"

namespace equigrad::comm {

struct LaunchEnvironment;

// A collective under way.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;  // returns when the output may be read
};
using PendingPtr = std::unique_ptr<Pending>;

class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual c10::Device device() const = 0;
  // Of a host, where ranks fill hosts of one size, one after the other; else all of them.
  virtual int local_ranks() const { return world_size(); }

  // output[r * n, (r + 1) * n) = what rank r holds at input[rank * n, ...).   [W * n] -> [W * n]
  // Rows may lie apart, or be one and the same: an input [W, n] of contiguous rows.
  virtual PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) = 0;
  // Of two ranks, where trades() says so: output = what the other one holds at input.   [n] -> [n]
  // An all_to_all that copies no row of its own.
  virtual bool trades() const { return false; }
  virtual PendingPtr trade(const at::Tensor& output, const at::Tensor& input);
  // output = the inputs of all ranks in rank order.   [n] -> [W * n]
  virtual PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) = 0;
  // The same of what exchange() says: few bytes, often, and on the CPU.
  virtual PendingPtr gather_words(const at::Tensor& output, const at::Tensor& input) {
    return all_gather(output, input);
  }
  // In place, in the backend's order.   [n]
  virtual PendingPtr all_reduce_sum(const at::Tensor& tensor) = 0;
  // output = this rank's slice of the sum, in the backend's order.   [W * n] -> [n]
  virtual PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual PendingPtr broadcast(const at::Tensor& tensor, int root) = 0;
  // From this rank to rank `to`, which receives as many bytes under the same tag, 0 <= tag < 2^31;
  // messages of one tag arrive in their order. A send may end no earlier than its receive begins.
  virtual PendingPtr send(const at::Tensor& tensor, int to, int tag);
  virtual PendingPtr receive(const at::Tensor& tensor, int from, int tag);

  // Who carries exchange()'s words: a group on the CPU beside NCCL, so that a word waits for no
  // kernel and stops no stream; else this one.
  virtual Communicator& words() { return *this; }

  // What errors call a rank: its number among all ranks, of which this group may be a part.
  using Names = std::shared_ptr<const std::vector<int>>;
  int64_t name_of(int64_t rank) const {
    return names_ ? names_->at(static_cast<std::size_t>(rank)) : rank;
  }
  const Names& names() const { return names_; }
  void call_ranks(std::vector<int> names) {
    names_ = std::make_shared<const std::vector<int>>(std::move(names));
  }

  Workspace& workspace() { return workspace_; }
  // What all who work with this communicator share, and which lives as long as it: null until one
  // of them puts it there (agreement/coordinator.hpp).
  std::shared_ptr<void>& companion() { return companion_; }

 private:
  Workspace workspace_;
  Names names_;  // null: these are all ranks
  std::shared_ptr<void> companion_;
};

// What every rank says, heard by all: int64 on the CPU.   [n] -> [W, n]
at::Tensor exchange(Communicator& communicator, const at::Tensor& message);

// The same under way: said when it is made, heard by wait().
class Exchange {
 public:
  Exchange(Communicator& communicator, const at::Tensor& message);
  at::Tensor wait();

 private:
  at::Tensor mine_, all_;
  PendingPtr pending_;
};

// Ranks on one machine or several that can see the file `rendezvous` (a c10d FileStore), over Gloo
// on the CPU. SIGPIPE is ignored from then on, unless the process has chosen what it does: a write
// to a rank that is gone shall be an error, not this rank's end.
std::shared_ptr<Communicator> connect_gloo(int rank, int world_size, const std::string& rendezvous,
                                           std::chrono::milliseconds timeout);
// The same over NCCL, one CUDA device a rank.
std::shared_ptr<Communicator> connect_nccl(int rank, int world_size, int device_index,
                                           const std::string& rendezvous,
                                           std::chrono::milliseconds timeout);
// Ranks that a launcher started: a TCP store at master_addr:master_port; NCCL when `device` is
// CUDA, which needs local_rank, else Gloo. Who waits long says so on stderr (wait_notice.hpp): rank
// 0 for ranks that have not come, others while they do not reach the store. After `timeout` the
// error names the ranks that never came.
std::shared_ptr<Communicator> connect(const LaunchEnvironment& launch, c10::DeviceType device,
                                      std::chrono::milliseconds timeout);

}  // namespace equigrad::comm
