// Communication error: what a collective throws when a peer is lost, or too slow.
//
// It says nothing about what was computed: whoever judges an engine, or starts its ranks anew, can
// tell it from the errors of the program by its type.
//
// Invariants: lost_rank() is set only where one rank is left for it: of this machine, whose process
// has ended (peers.hpp); of two ranks, the other one; of more, the only one without a word
// (roll_call.hpp).
// Units: ranks count from 0.   Errors: none.
// Depends on: engine/error.hpp.
#pragma once

#include <optional>
#include <string>

#include "engine/error.hpp"

namespace equigrad::comm {

class CommunicationError : public Error {
 public:
  CommunicationError(const std::string& where, const std::string& what,
                     std::optional<int> lost_rank = std::nullopt)
      : Error(where, what), lost_rank_(lost_rank) {}
  std::optional<int> lost_rank() const { return lost_rank_; }

 private:
  std::optional<int> lost_rank_;
};

}  // namespace equigrad::comm
