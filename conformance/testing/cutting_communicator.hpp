// CuttingCommunicator: a communicator whose all-gathers throw while it is cut, and are counted
// while they are under way.
//
// Invariants: everything else goes to the inner communicator unchanged.
// Errors: CommunicationError "communication is cut".   Depends on:
// conformance/faults/forwarding_communicator.hpp.
#pragma once

#include <memory>
#include <utility>

#include "conformance/faults/forwarding_communicator.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad::conformance {

class CuttingCommunicator final : public faults::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (cut) throw comm::CommunicationError("test", "communication is cut", 1);
    return std::make_unique<Counted>(ForwardingCommunicator::all_gather(output, input), under_way);
  }

  bool cut = false;
  int under_way = 0;  // that nobody has waited for

 private:
  struct Counted final : comm::Pending {
    Counted(comm::PendingPtr of, int& count) : inner(std::move(of)), under_way(count) {
      ++under_way;
    }
    void wait() override {
      inner->wait();
      --under_way;
    }
    comm::PendingPtr inner;
    int& under_way;
  };
};

}  // namespace equigrad::conformance
