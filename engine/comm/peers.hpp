// Peers: which process every rank is, so that a lost one can be told by its rank.
//
// Every rank gives the others its introduction() while all are there; later they can look whether
// that process still runs. Nothing is sent to find out.
//
// Invariants: a rank is named only if it runs on this machine, in this space of process numbers,
// and its process has ended, or can run nothing any more.
// Units: ranks count from 0.
// Errors: none; a peer that cannot be looked at counts as alive.
// Depends on: roll_call.hpp, Linux's /proc.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/comm/roll_call.hpp"

namespace equigrad::comm {

// Of this process: "machine number start".
std::string introduction();

class Peers {
 public:
  Peers() = default;  // knows nobody
  explicit Peers(std::vector<std::string> introductions, RollCall roll_call = {})
      : processes_(std::move(introductions)), roll_call_(std::move(roll_call)) {}

  // The ranks whose processes have ended.
  std::vector<int> ended() const;
  // As Communicator has them; the space of process numbers is taken for the host.
  int local_ranks(int world_size) const;
  bool are_here(int world_size) const;  // all of them on this machine, as far as is known
  const RollCall& roll_call() const { return roll_call_; }  // of those that cannot be looked at

 private:
  std::vector<std::string> processes_;  // by rank
  RollCall roll_call_;
};

}  // namespace equigrad::comm
