// Local faults: faults that are there to see relations fail which no fault of the catalogue breaks,
// most of them because they act only where no case of the matrix goes. Planted: the fault of a
// setting, of the catalogue or a local one, while it lives.
//
// Invariants: a fault acts in every pass or step that it fits, on every rank, and owns the seams.
// One is planted at a time in a process; the first session to ask has it.
// Shapes: the seams'.   Errors: equigrad::Error for a name that neither has.
// Depends on: conformance/faults/fault.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/faults/fault.hpp"

namespace equigrad::property_tests::relations {

class Planted {
 public:
  // Nothing is planted where `fault` is empty.
  Planted(const std::string& fault, int rank, int world,
          const std::shared_ptr<const conformance::faults::Moment>& moment,
          const std::vector<std::string>& parameters);
  ~Planted();
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;

  std::shared_ptr<comm::Communicator> wrap(std::shared_ptr<comm::Communicator> real);

 private:
  bool is_ours_;
  std::unique_ptr<conformance::faults::Planted> of_catalogue_;
  std::unique_ptr<conformance::faults::FaultContext> context_;
};

}  // namespace equigrad::property_tests::relations
