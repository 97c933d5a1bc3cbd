// Way: how a run differs from the plain one, and the record of what it computed.
//
// Invariants: a record's digests are sums over the ranks, so they do not depend on who holds what;
// what every rank holds counts once.
// Shapes: gradients are this rank's flat shards.   Units: steps and micro-batches count from 0.
// Errors: none.   Depends on: probe_network.hpp, conformance/ranks, engine/api/engine_types.hpp.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "conformance/ranks/rank_context.hpp"
#include "engine/comm/communicator.hpp"
#include "property_tests/relations/probe_network.hpp"

namespace equigrad::property_tests::relations {

using conformance::ranks::RankContext;

struct Record {
  std::map<std::string, uint64_t> digests;      // "1 gradient first"; empty: this rank took no part
  std::map<std::string, LocalShard> gradients;  // of the first step; copies
  double norm = 0;                              // of the last step
  int64_t skipped = 0;
  std::vector<double> scales;  // after every step
  float least = 0;             // of all gradients that are not zero, those between layers too
};

class Session;
// How a session differs from the plain one.
struct Way {
  std::function<void(Session&, const Source&)> pass;  // instead of engine.backward(loss)
  std::function<Source(Source)> source;               // of the batch
  std::function<std::shared_ptr<comm::Communicator>(std::shared_ptr<comm::Communicator>)> wrap;
  double factor = 1;  // gradients are multiplied by it before they are digested
  int world = 0;      // the first so many ranks; 0: all
  int steps = 2;
  bool reversed = false;  // parameters are registered in reverse
  bool observed = true;
  std::map<std::string, at::Tensor> start;  // values of parameters; the network's own otherwise
};

}  // namespace equigrad::property_tests::relations
