// Session: one engine on a network, and a record of everything it computes. Way: how a run differs
// from the plain one.
//
// Invariants: a session plants the setting's fault, if no other session has. A record's digests are
// sums over the ranks, so they do not depend on who holds what; what every rank holds counts once.
// Shapes: gradients are this rank's flat shards.   Units: steps and micro-batches count from 0.
// Errors: those of the engine.
// Depends on: probe_network.hpp, planted.hpp, conformance/ranks, engine/engine.hpp.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "conformance/faults/fault.hpp"
#include "conformance/ranks/rank_context.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/engine.hpp"
#include "property_tests/relations/planted.hpp"
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

class Session {
 public:
  ProbeNetwork network;
  Record record;

  Session(const json& one, RankContext& context, const Way& way);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  at::ScalarType dtype() const;
  at::Tensor output(const Source& from, bool checkpointed = false) const;
  at::Tensor loss(const Source& from) const;

  // All of the way's steps; or one of them, or one micro-batch, and finish() at the end.
  void train();
  void step(int step);
  void micro_batch(const Source& at);
  // The pieces of a step, for two sessions under one loss.
  void observe(int step);
  void begin(const Source& from) { *moment_ = {from.step, from.micro}; }
  void after(int step);
  // The sums over the ranks, and the least of all gradients on any of them.
  const Record& finish();

 private:
  bool speaks() const;
  void add(int step, const std::string& what, int64_t begin, const at::Tensor& values, bool count);

  json one_;
  Way way_;
  int rank_, world_;
  std::shared_ptr<conformance::faults::Moment> moment_;

 public:
  std::shared_ptr<comm::Communicator> group;

 private:
  Planted planted_;

 public:
  std::unique_ptr<Engine> engine;  // ends before the fault does
};

}  // namespace equigrad::property_tests::relations
