// Part: one engine's part in what ranks say to each other, with nothing of an engine behind it.
//
// Invariants: it is engine 0 of a communicator of its own.
// Units: none.   Errors: those of the agreement.
// Depends on: stations.hpp, engine/agreement/coordinator.hpp.
#pragma once

#include <memory>
#include <vector>

#include "conformance/contract/parts/stations.hpp"
#include "engine/agreement/coordinator.hpp"

namespace equigrad::conformance::contract {

using Pages = std::vector<std::size_t>;

struct Part {
  int rank, world, last;
  CountedWire wire;
  std::vector<Pages> gathered = {};
  std::unique_ptr<agreement::Participant> it;

  explicit Part(Play& play, std::size_t marks = 70)
      : rank(play.context().rank),
        world(play.context().world),
        last(world - 1),
        wire(play.group()),
        it(std::make_unique<agreement::Participant>(wire, marks)) {
    it->serve([this](const Pages& pages) { gathered.push_back(pages); });
  }
  bool is_last() const { return rank == last; }
  bool is_alone() const { return world == 1; }
};

}  // namespace equigrad::conformance::contract
