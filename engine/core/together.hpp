// Together: what every rank tries, and what comes of it on all of them.
//
// Invariants: ranks have met (agreement/coordinator.hpp) and come here in step; `attempt` is no
// collective call that a rank whose own part has failed would leave out.
// Errors: if the attempt threw on any rank, every rank throws: its own exception where it has one,
// else an error that names the first rank that has, and its words.
// Depends on: comm.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/comm/communicator.hpp"

namespace equigrad::core {

// What every rank's attempt returned, by rank.
std::vector<std::string> together(comm::Communicator& communicator, const std::string& where,
                                  const std::function<std::string()>& attempt);

// Whether all ranks run under one kernel, on a host of one name: it reads a file once for all.
bool are_on_one_host(comm::Communicator& communicator, const std::string& where);

}  // namespace equigrad::core
