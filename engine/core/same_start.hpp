// Same start: that the ranks of one engine were given one configuration and one model.
//
// What a caller's optimizer is set to is compared as its group's settings say it: Python's are.
//
// Other numbers on one rank are no error of any collective: replicas part, or shards follow other
// rates, and every loss curve looks fine.
//
// Invariants: a collective call of all ranks, which have met (agreement/coordinator.hpp); 64 bytes
// a rank where they agree. The configuration is that of all ranks; parameters are compared among
// those of one place along tensor, since parts of a split parameter need not be alike.
// Errors: on every rank, naming the first key or parameter that differs, and two ranks.
// Depends on: config, comm, core/together.
#pragma once

#include <vector>

#include "engine/comm/mesh.hpp"
#include "engine/engine.hpp"

namespace equigrad::core {

void require_same_start(const std::vector<ParameterGroup>& groups, const EngineConfig& config,
                        const comm::Mesh& mesh);

}  // namespace equigrad::core
