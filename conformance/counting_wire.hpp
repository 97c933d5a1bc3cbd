// CountingWire: a communicator that counts its all-gathers, the ranks' messages to each other among
// them.
//
// Invariants: everything goes to the inner communicator unchanged.
// Errors: the inner communicator's.   Depends on: engine/comm/communicator.hpp.
#pragma once

#include <memory>
#include <utility>

#include "engine/comm/communicator.hpp"

namespace equigrad::conformance {

class CountingWire final : public comm::Communicator {
 public:
  explicit CountingWire(std::shared_ptr<comm::Communicator> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  c10::Device device() const override { return inner_->device(); }
  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return inner_->all_to_all(output, input);
  }
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    ++(input.scalar_type() == at::kLong ? messages : gathers);
    return inner_->all_gather(output, input);
  }
  comm::PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    return inner_->all_reduce_sum(tensor);
  }
  comm::PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    return inner_->reduce_scatter_sum(output, input);
  }
  comm::PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    return inner_->broadcast(tensor, root);
  }
  int64_t messages = 0;  // of int64
  int64_t gathers = 0;   // of anything else

 private:
  std::shared_ptr<comm::Communicator> inner_;
};

}  // namespace equigrad::conformance
