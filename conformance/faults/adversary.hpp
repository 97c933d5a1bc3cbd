// Adversary: a communicator that does everything at the worst time that is allowed.
//
// A collective begins at once or as late as its own wait(), by the seed, but never after one that
// was launched later, as with a real communicator. A result stays in a block of its own until
// wait(), or is handed over earlier, at the wait() of another collective. Until then the output
// holds a pattern: NaN, or numbers that nobody sent. One rank is late by milliseconds, now and
// then. At wait() the adversary looks whether the input is what it was at the launch and the output
// is untouched, and whether their memory is still the caller's.
//
// Invariants: what a correct engine computes is the same, bit for bit; a rank that breaks the rules
//   of communicator.hpp gets an error, after the collective, so that its peers go on. Collectives
//   begin in the order in which they were launched, whatever is waited for first.
// Shapes: those of engine/comm/communicator.hpp.   Units: milliseconds.
// Errors: equigrad::Error naming the collective, its number on this rank, and what was done to it.
// Depends on: forwarding_communicator.hpp.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/comm/communicator.hpp"

namespace equigrad::conformance::faults {

struct AdversaryOptions {
  uint64_t seed = 1;
  bool complains = true;     // at wait(), of what was touched in flight
  bool always_late = false;  // sums begin as late as they may, no delays
  // Results arrive at the wait() of another collective too. Not of a rank with several groups: who
  // must begin what is waited for so may wait in another group for this rank.
  bool arrives_early = true;
};

std::shared_ptr<comm::Communicator> adversarial(std::shared_ptr<comm::Communicator> real,
                                                AdversaryOptions options);
// The same by a number that requests carry; 0: the real one itself. One of several groups of a rank
// does not arrive early.
std::shared_ptr<comm::Communicator> adversarial(std::shared_ptr<comm::Communicator> real,
                                                uint64_t seed, bool is_one_of_several = false);

}  // namespace equigrad::conformance::faults
