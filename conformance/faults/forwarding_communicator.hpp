// ForwardingCommunicator: a communicator that forwards everything to a real one; a fault or an
// adversary overrides what it changes.
//
// Invariants: as it stands it behaves like the one that it wraps. What is sent to be summed goes
// through carry(), whether by all_to_all or, of two ranks, by trade: one place to override, or the
// path of two ranks would meet no fault. By trade only the other rank's row is sent; what must
// alter a rank's own row as well does not trade. The ranks' words pass here too, unless they have a
// group of their own. Altered keeps an altered input
// alive, and alters the output once it is there.
// Shapes, errors: those of engine/comm/communicator.hpp.
// Depends on: engine/comm/communicator.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>

#include "engine/comm/communicator.hpp"

namespace equigrad::conformance::faults {

using comm::PendingPtr;

class Altered : public comm::Pending {
 public:
  Altered(PendingPtr pending, at::Tensor kept_input, std::function<void()> alter_output)
      : pending_(std::move(pending)),
        kept_input_(std::move(kept_input)),
        alter_output_(std::move(alter_output)) {}

  void wait() override {
    pending_->wait();
    if (alter_output_) std::exchange(alter_output_, nullptr)();
  }

 private:
  PendingPtr pending_;
  at::Tensor kept_input_;
  std::function<void()> alter_output_;
};

class ForwardingCommunicator : public comm::Communicator {
 public:
  explicit ForwardingCommunicator(std::shared_ptr<comm::Communicator> communicator)
      : real_(std::move(communicator)) {}

  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  c10::Device device() const override { return real_->device(); }
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) final {
    return carry(&comm::Communicator::all_to_all, output, input);
  }
  bool trades() const override { return real_->trades(); }
  PendingPtr trade(const at::Tensor& output, const at::Tensor& input) final {
    return carry(&comm::Communicator::trade, output, input);
  }
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return real_->all_gather(output, input);
  }
  PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    return real_->all_reduce_sum(tensor);
  }
  PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    return real_->reduce_scatter_sum(output, input);
  }
  PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    return real_->broadcast(tensor, root);
  }
  PendingPtr send(const at::Tensor& tensor, int to, int tag) override {
    return real_->send(tensor, to, tag);
  }
  PendingPtr receive(const at::Tensor& tensor, int from, int tag) override {
    return real_->receive(tensor, from, tag);
  }

  comm::Communicator& words() override {
    auto& words = real_->words();
    return &words == real_.get() ? *this : words;
  }

 protected:
  using Carrier = PendingPtr (comm::Communicator::*)(const at::Tensor&, const at::Tensor&);

  virtual PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) {
    return (*real_.*by)(output, input);
  }
  // Sends `input` instead of what carry() was given.
  PendingPtr send(Carrier by, const at::Tensor& output, at::Tensor input) {
    auto pending = (*real_.*by)(output, input);
    return std::make_unique<Altered>(std::move(pending), std::move(input), nullptr);
  }

  std::shared_ptr<comm::Communicator> real_;
};

}  // namespace equigrad::conformance::faults
