// CountingCommunicator: a communicator that counts its all-gathers, the ranks' messages to each
// other among them.
//
// Invariants: everything goes to the inner communicator unchanged.
// Errors: the inner communicator's.   Depends on: conformance/faults/forwarding_communicator.hpp.
#pragma once

#include <cstdint>

#include "conformance/faults/forwarding_communicator.hpp"

namespace equigrad::conformance {

class CountingCommunicator final : public faults::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    ++(input.scalar_type() == at::kLong ? messages : gathers);
    return ForwardingCommunicator::all_gather(output, input);
  }

  int64_t messages = 0;  // of int64
  int64_t gathers = 0;   // of anything else
};

}  // namespace equigrad::conformance
