// CutWire: a communicator whose all-gathers throw while it is cut.
//
// Invariants: everything else goes to the inner communicator unchanged.
// Errors: CommunicationError "the wire is cut".   Depends on: conformance/faults/wire.hpp.
#pragma once

#include "conformance/faults/wire.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad::conformance {

class CutWire final : public faults::Wire {
 public:
  using Wire::Wire;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (cut) throw comm::CommunicationError("test", "the wire is cut", 1);
    return Wire::all_gather(output, input);
  }

  bool cut = false;
};

}  // namespace equigrad::conformance
