// Contributions: which parameters the accumulation window has used, and whether all ranks ran
// alike.
//
// Invariants: a parameter counts as used if any rank's backward pass reached it since the window
// began, so all ranks update the same parameters; identity is by parameter, never by arrival.
// Units: passes are counted since the window began.
// Errors: equigrad::Error when ranks ran different numbers of passes.
// Depends on: comm/communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/comm/communicator.hpp"

namespace equigrad::gradient {

class Contributions {
 public:
  explicit Contributions(std::size_t parameters) : used_(parameters, false) {}

  void use(std::size_t parameter) { used_[parameter] = true; }
  void end_pass() { ++passes_; }
  void clear();
  // By parameter: whether any rank used it. Collective.
  std::vector<bool> agree(comm::Communicator& communicator) const;

 private:
  std::vector<bool> used_;  // by this rank
  int64_t passes_ = 0;
};

}  // namespace equigrad::gradient
