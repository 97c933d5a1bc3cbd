// CountingWire: a communicator that counts its all-gathers, the ranks' messages to each other among
// them.
//
// Invariants: everything goes to the inner communicator unchanged.
// Errors: the inner communicator's.   Depends on: conformance/faults/wire.hpp.
#pragma once

#include <cstdint>

#include "conformance/faults/wire.hpp"

namespace equigrad::conformance {

class CountingWire final : public faults::Wire {
 public:
  using Wire::Wire;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    ++(input.scalar_type() == at::kLong ? messages : gathers);
    return Wire::all_gather(output, input);
  }

  int64_t messages = 0;  // of int64
  int64_t gathers = 0;   // of anything else
};

}  // namespace equigrad::conformance
