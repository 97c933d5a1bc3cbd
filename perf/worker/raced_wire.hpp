// RacedWire: the wire of a counted run. It counts, sees what overlaps, and may be slower on
// purpose.
//
// A collective is overlapped if an operator ran between its call and its wait(); operators.hpp
// counts them.
//
// Invariants: faults are planted slow-downs that the gate must catch, never defaults.
// Units: faults in microseconds a collective.
// Errors: those of the wrapped one.
// Depends on: conformance/testing/counting_communicator.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "conformance/testing/counting_communicator.hpp"

namespace equigrad::perf {

struct CommunicationFault {
  int64_t sleep_us = 0;   // before each collective
  bool waits = false;     // a collective is over when its call returns: nothing overlaps
  bool copies = false;    // its input once more
  bool one_more = false;  // an exchange of one number after every all_to_all and all_reduce

  bool operator==(const CommunicationFault&) const = default;
};

class RacedWire final : public conformance::CountingCommunicator {
 public:
  RacedWire(std::shared_ptr<comm::Communicator> communicator, CommunicationFault fault)
      : CountingCommunicator(std::move(communicator)), fault_(fault) {}

  // Of the collectives that counts() has, those where operators ran before wait().
  const std::map<std::string, int64_t>& overlapped() const { return overlapped_; }
  void reset() override;

 protected:
  at::Tensor sent_for(const at::Tensor& input) override;
  comm::PendingPtr started(const char* name, comm::PendingPtr pending) override;

 private:
  CommunicationFault fault_;
  std::map<std::string, int64_t> overlapped_;
};

}  // namespace equigrad::perf
