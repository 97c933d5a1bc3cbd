// EmptyWire: a communicator of as many ranks as one likes, of which this one, rank 0, is there.
//
// It carries nothing: what the others would send to all is what this rank sends, and to it alone,
// zeros. So all ranks agree, and an engine over it goes through the schedule of one of W ranks that
// do the same, in one process: perf/scale counts it. Its sums and weights mean nothing.
//
// Invariants: an output is full when the call returns.
// Shapes: those of communicator.hpp.
// Errors: none.
// Depends on: engine/comm/communicator.hpp.
#pragma once

#include "engine/comm/communicator.hpp"

namespace equigrad::perf {

class EmptyWire final : public comm::Communicator {
 public:
  explicit EmptyWire(int world_size) : world_size_(world_size) {}

  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  c10::Device device() const override { return c10::Device(c10::kCPU); }
  bool trades() const override { return world_size_ == 2; }

  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr trade(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr all_reduce_sum(const at::Tensor& tensor) override;
  comm::PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr broadcast(const at::Tensor& tensor, int root) override;
  comm::PendingPtr send(const at::Tensor& tensor, int to, int tag) override;
  comm::PendingPtr receive(const at::Tensor& tensor, int from, int tag) override;

 private:
  int world_size_;
};

}  // namespace equigrad::perf
