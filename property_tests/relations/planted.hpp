// Planted: the fault of a setting, of the catalogue or a local one, while it lives.
//
// Invariants: one at a time in a process; the first session to ask has it.
// Shapes, units: none.   Errors: equigrad::Error for a name that neither has.
// Depends on: local_faults.hpp, conformance/faults/fault.hpp.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/faults/fault.hpp"
#include "property_tests/relations/local_faults.hpp"

namespace equigrad::property_tests::relations {

class Planted {
 public:
  // Nothing is planted where `fault` is empty.
  Planted(const std::string& fault, int rank, int world,
          const std::shared_ptr<const conformance::faults::Moment>& moment,
          const std::vector<std::string>& parameters)
      : is_ours_(!fault.empty()) {
    if (!is_ours_ || living()++ > 0) return;
    const auto local = local_faults().find(fault);
    if (local == local_faults().end()) {
      of_catalogue_ =
          std::make_unique<conformance::faults::Planted>(fault, rank, world, moment, parameters);
    } else {
      context_ = std::make_unique<FaultContext>(rank, world, moment, parameters);
      local->second(*context_);
    }
  }
  ~Planted() {
    if (is_ours_) --living();
    if (context_) seams() = {};
  }
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;

  std::shared_ptr<comm::Communicator> wrap(std::shared_ptr<comm::Communicator> real) {
    return of_catalogue_ ? of_catalogue_->wrap(std::move(real)) : real;
  }

 private:
  static int& living() {
    static int count = 0;
    return count;
  }
  bool is_ours_;
  std::unique_ptr<conformance::faults::Planted> of_catalogue_;
  std::unique_ptr<FaultContext> context_;
};

}  // namespace equigrad::property_tests::relations
