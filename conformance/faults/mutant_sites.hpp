// Mutant sites: where data, a number or a call passes from one station to the next.
//
// Invariants: a site hands everything that passes in the second step, on the last rank, to the
// mutation; elsewhere it goes on as it is.
// Shapes: those of the station.   Errors: none.
// Depends on: fault.hpp, mutators.hpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conformance/faults/fault.hpp"
#include "conformance/faults/mutators.hpp"

namespace equigrad::conformance::faults {

using Mutate = std::function<at::Tensor(const at::Tensor& values)>;
using MutateNumber = std::function<double(double)>;
using CommunicatorPtr = std::shared_ptr<comm::Communicator>;

struct Site {
  std::string name;                                     // "average"
  std::string what;                                     // "the average of a step"
  std::string seam;                                     // kSeams
  std::string phase;                                    // kPhases
  std::function<void(FaultContext&, Mutate)> at_seams;  // null: in the communicator
  std::function<CommunicatorPtr(CommunicatorPtr, FaultContext&, Mutate)>
      on_communicator;  // null: at a seam
};
const std::vector<Site>& sites();

struct NumberSite {
  std::string name, what, seam, phase;
  std::function<void(FaultContext&, MutateNumber)> at_seams;
};
const std::vector<NumberSite>& number_sites();

// A call that is left out, or made twice.
struct CallSite {
  std::string name, what, seam, phase;
  std::function<void(FaultContext&, int times)> at_seams;
};
const std::vector<CallSite>& call_sites();

// Whether a mutant acts now.
inline bool is_time(const FaultContext& context) {
  return context.step() == 1 && context.is_last_rank();
}

}  // namespace equigrad::conformance::faults
