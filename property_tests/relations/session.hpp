// Session: one engine on a network, and a record of everything it computes.
//
// Invariants: a session plants the setting's fault, if no other session has.
// Shapes: those of way.hpp.   Units: steps and micro-batches count from 0.
// Errors: those of the engine.
// Depends on: way.hpp, conformance/faults, conformance/oracle, engine/engine.hpp.
#pragma once

#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "conformance/faults/fault.hpp"
#include "conformance/oracle/digest.hpp"
#include "engine/engine.hpp"
#include "property_tests/relations/planted.hpp"
#include "property_tests/relations/way.hpp"

namespace equigrad::property_tests::relations {

class Session {
 public:
  ProbeNetwork network;
  Record record;

  Session(const json& one, RankContext& context, const Way& way)
      : network(one, way.reversed),
        one_(one),
        way_(way),
        rank_(context.rank()),
        world_(way.world != 0 ? way.world : context.world_size()),
        moment_(std::make_shared<conformance::faults::Moment>()),
        group_(context.group(world_)),
        planted_(one.value("fault", ""), rank_, world_, moment_, names_of(network)) {
    auto communicator = way.wrap ? way.wrap(group_) : group_;
    communicator = planted_.wrap(communicator);
    {
      const at::NoGradGuard no_grad;
      for (const auto& [name, value] : way.start) at::Tensor(network[name]).copy_(value);
    }
    engine = initialize({ParameterGroup{network.parameters, {}, {}}}, config_of(one, world_),
                        communicator);
    begin({0, rank_, 0});
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  at::ScalarType dtype() const { return torch_dtype(engine->config().precision.param); }
  at::Tensor output(const Source& from, bool checkpointed = false) const {
    return network.output(network.input(from, dtype()), checkpointed);
  }
  at::Tensor loss(const Source& from) const {
    return network.loss(output(from), network.target(from));
  }
  void begin(const Source& from) { *moment_ = {from.step, from.micro}; }
  const std::shared_ptr<comm::Communicator>& group() const { return group_; }

  void train() {
    for (int step = 0; step < way_.steps; ++step) this->step(step);
    finish();
  }
  void step(int step) {
    observe(step);
    for (int micro = 0; micro < accumulation_of(one_); ++micro) micro_batch({step, rank_, micro});
    after(step);
  }
  void micro_batch(const Source& at) {
    begin(at);
    const auto from = way_.source ? way_.source(at) : at;
    if (way_.pass) {
      way_.pass(*this, from);
    } else {
      engine->backward(loss(from));
    }
    engine->step();
  }
  void observe(int step) {
    if (!way_.observed) return;
    engine->on_step([this, step](const std::vector<LocalShard>& shards) {
      for (const auto& shard : shards) {
        if (!shard.gradient.defined()) continue;
        const auto gradient = shard.gradient * way_.factor;
        add(step, "gradient " + shard.name, shard.begin, gradient, speaks());
        if (step == 0) {
          auto& copy = record.gradients[shard.name] = shard;
          copy.gradient = shard.gradient.clone();
        }
      }
    });
  }
  void after(int step) {
    record.norm = engine->get_global_grad_norm().value_or(-1);
    record.skipped = engine->counters().skipped_steps;
    record.scales.push_back(engine->loss_scale());
    add(step, "norm", 0, at::full({1}, record.norm * way_.factor, at::kDouble), rank_ == 0);
    add(step, "scale", 0, at::full({1}, engine->loss_scale(), at::kDouble), rank_ == 0);
    for (const auto& shard : engine->local_shards()) {
      add(step, "master " + shard.name, shard.begin, shard.master, speaks());
      for (const auto& [name, state] : shard.state)
        add(step, "state " + shard.name + " " + name, shard.begin, state, speaks());
    }
    for (const auto& parameter : network.parameters)
      add(step, "parameter " + parameter.name, 0, engine->full_parameter(parameter.name).flatten(),
          rank_ == 0);
  }
  // The sums over the ranks, and the least of all gradients on any of them.
  const Record& finish() {
    auto mine = at::zeros({static_cast<int64_t>(record.digests.size()) + 1}, at::kLong);
    int64_t i = 0;
    for (const auto& [key, digest] : record.digests) mine[i++] = static_cast<int64_t>(digest);
    mine[i] =
        std::bit_cast<int32_t>(network.least);  // in the order of the numbers, which are positive
    const auto all = comm::exchange(*group_, mine);
    i = 0;
    for (auto& [key, digest] : record.digests)
      digest = static_cast<uint64_t>(all.select(1, i++).sum().item<int64_t>());
    network.least = std::bit_cast<float>(all.select(1, i).min().item<int32_t>());
    record.least = network.least;
    return record;
  }

 private:
  static std::vector<std::string> names_of(const ProbeNetwork& network) {
    std::vector<std::string> names;
    for (const auto& parameter : network.parameters) names.push_back(parameter.name);
    return names;
  }
  // At stage 0 every rank holds everything: rank 0 speaks for all.
  bool speaks() const { return stage_of(one_) > 0 || rank_ == 0; }
  void add(int step, const std::string& what, int64_t begin, const at::Tensor& values, bool count) {
    auto& digest = record.digests[std::to_string(step + 1) + " " + what];
    if (count) digest += conformance::oracle::digest(what, 0, begin, values);
  }

  json one_;
  Way way_;
  int rank_, world_;
  std::shared_ptr<conformance::faults::Moment> moment_;
  std::shared_ptr<comm::Communicator> group_;
  Planted planted_;

 public:
  std::unique_ptr<Engine> engine;  // ends before the fault does
};

}  // namespace equigrad::property_tests::relations
