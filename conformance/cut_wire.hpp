// CutWire: a communicator whose all-gathers throw while it is cut.
//
// Invariants: everything else goes to the inner communicator unchanged.
// Errors: CommunicationError "the wire is cut".   Depends on: engine/comm/communicator.hpp.
#pragma once

#include <memory>
#include <utility>

#include "engine/comm/communication_error.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::conformance {

class CutWire final : public comm::Communicator {
 public:
  explicit CutWire(std::shared_ptr<comm::Communicator> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  c10::Device device() const override { return inner_->device(); }
  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return inner_->all_to_all(output, input);
  }
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (cut) throw comm::CommunicationError("test", "the wire is cut", 1);
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
  bool cut = false;

 private:
  std::shared_ptr<comm::Communicator> inner_;
};

}  // namespace equigrad::conformance
