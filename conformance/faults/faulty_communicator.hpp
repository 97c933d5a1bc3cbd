// FaultyCommunicator: a wire that does one planted thing wrong.
//
// A run is worth nothing unless it would have seen a fault, so before every run these are planted,
// one at a time, around a real communicator; the engine knows nothing of it.
//
// Invariants: outside its moment a faulty communicator behaves like the one it wraps; every rank
// still issues the same collectives.
// Units: steps and micro-batches count from 0.
// Errors: equigrad::Error for a fault of another name.
// Depends on: engine/comm/communicator.hpp.
#pragma once

#include <memory>
#include <string>

#include "conformance/faults/planted_faults.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::conformance::faults {

// Where the run is; the program moves it, the wire looks at it.
struct Moment {
  int step = -1;
  int micro_batch = -1;
};

std::shared_ptr<comm::Communicator> make_faulty(std::shared_ptr<comm::Communicator> wire,
                                                const std::string& fault,
                                                std::shared_ptr<const Moment> moment);

}  // namespace equigrad::conformance::faults
