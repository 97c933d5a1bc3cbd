// Peers: which process every rank is, so that a lost one can be told by its rank.
//
// Every rank gives the others its introduction() while all are there; later they can look whether
// that process still runs. Nothing is sent to find out.
//
// Invariants: a rank is named only if it runs on this machine, in this space of process numbers,
// and its process has ended, or can run nothing any more.
// Units: ranks count from 0.
// Errors: none; a peer that cannot be looked at counts as alive.
// Depends on: the C++ standard library, Linux's /proc.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace equigrad::comm {

// Of this process: "machine number start".
std::string introduction();

class Peers {
 public:
  Peers() = default;  // knows nobody
  explicit Peers(std::vector<std::string> introductions) : processes_(std::move(introductions)) {}

  // The ranks whose processes have ended.
  std::vector<int> ended() const;

 private:
  std::vector<std::string> processes_;  // by rank
};

}  // namespace equigrad::comm
