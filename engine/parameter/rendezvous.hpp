// Rendezvous: ranks agree on the next collective, so that a branch which only some of them take can
// never deadlock them or hand one the other's bytes.
//
// A gather is collective, but at stage 3 a rank gathers what its own operators use, and operators
// may depend on data. So before every gather and every other collective the ranks exchange one
// small message: the pages I want, or the collective I have come to. All then gather the union of
// the pages wanted; who came to a collective stays, and serves, until all have come to it.
//
// Invariants: all ranks leave with the same union, or at the same collective.
// Shapes: a message is 3 + ceil(pages / 63) int64 words.
// Errors: equigrad::Error naming the ranks, when they have come to different collectives and nobody
// wants a page.
// Depends on: comm/communicator, parameter/parameters.hpp's Meeting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/comm/communicator.hpp"
#include "engine/parameter/parameters.hpp"

namespace equigrad::parameter {

class Rendezvous {
 public:
  // Starts the gathers of these pages, in this order; the same call on every rank.
  using Gather = std::function<void(const std::vector<std::size_t>& pages)>;

  Rendezvous(comm::Communicator& communicator, std::size_t pages, Gather gather);

  // At least one page is wanted; all of them have been started on return.
  void want(const std::vector<std::size_t>& pages);
  // Serves until all ranks have come to the same place; true if all of them flush.
  bool come_to(Meeting meeting, int64_t number, bool flushing);

 private:
  struct Place {
    int64_t meeting;
    int64_t number;
    int64_t flushing;
  };
  enum class Result { Served, Met, MetFlushing };
  // One exchange: gathers the union, or finds that every rank has come to the same place.
  Result exchange(const Place& place, const std::vector<std::size_t>& pages);

  comm::Communicator& communicator_;
  std::size_t pages_;
  Gather gather_;
};

}  // namespace equigrad::parameter
