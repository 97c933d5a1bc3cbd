#include "property_tests/relations/session.hpp"

#include <ATen/ATen.h>

#include <bit>
#include <cmath>

#include "conformance/oracle/digest.hpp"

namespace equigrad::property_tests::relations {
namespace {

std::vector<std::string> names_of(const ProbeNetwork& network) {
  std::vector<std::string> names;
  for (const auto& parameter : network.parameters) names.push_back(parameter.name);
  return names;
}

// Dealt out in turn; each later one has half the rate and decay of the one before.
std::vector<ParameterGroup> groups_of(const ProbeNetwork& network, const json& one,
                                      const OptimizerConfig& optimizer) {
  std::vector<ParameterGroup> groups(one.value("groups", std::size_t{1}));
  for (std::size_t i = 0; i < network.parameters.size(); ++i)
    groups[i % groups.size()].parameters.push_back(network.parameters[i]);
  for (std::size_t i = 1; i < groups.size(); ++i) {
    groups[i].lr = std::ldexp(optimizer.lr, -static_cast<int>(i));
    groups[i].weight_decay = std::ldexp(optimizer.weight_decay, -static_cast<int>(i));
  }
  return groups;
}

}  // namespace

Session::Session(const json& one, RankContext& context, const Way& way)
    : network(one, way.reversed),
      one_(one),
      way_(way),
      rank_(context.rank()),
      world_(way.world != 0 ? way.world : context.world_size()),
      moment_(std::make_shared<conformance::faults::Moment>()),
      group(context.group(world_)),
      planted_(one.value("fault", ""), rank_, world_, moment_, names_of(network)) {
  auto communicator = way.wrap ? way.wrap(group) : group;
  communicator = planted_.wrap(communicator);
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : way.start) at::Tensor(network[name]).copy_(value);
  }
  const auto config = config_of(one, world_);
  engine = initialize(groups_of(network, one, config.optimizer), config, communicator);
  begin({0, rank_, 0});
}

at::ScalarType Session::dtype() const { return torch_dtype(engine->config().precision.param); }

at::Tensor Session::output(const Source& from, bool checkpointed) const {
  return network.output(network.input(from, dtype()), checkpointed);
}

at::Tensor Session::loss(const Source& from) const {
  return network.loss(output(from), network.target(from));
}

void Session::train() {
  for (int step = 0; step < way_.steps; ++step) this->step(step);
  finish();
}

void Session::step(int step) {
  observe(step);
  for (int micro = 0; micro < accumulation_of(one_); ++micro) micro_batch({step, rank_, micro});
  after(step);
}

void Session::micro_batch(const Source& at) {
  begin(at);
  const auto from = way_.source ? way_.source(at) : at;
  if (way_.pass) {
    way_.pass(*this, from);
  } else {
    engine->backward(loss(from));
  }
  engine->step();
}

void Session::observe(int step) {
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

void Session::after(int step) {
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

const Record& Session::finish() {
  auto mine = at::zeros({static_cast<int64_t>(record.digests.size()) + 1}, at::kLong);
  int64_t i = 0;
  for (const auto& [key, digest] : record.digests) mine[i++] = static_cast<int64_t>(digest);
  mine[i] =
      std::bit_cast<int32_t>(network.least);  // in the order of the numbers, which are positive
  const auto all = comm::exchange(*group, mine);
  i = 0;
  for (auto& [key, digest] : record.digests)
    digest = static_cast<uint64_t>(all.select(1, i++).sum().item<int64_t>());
  network.least = std::bit_cast<float>(all.select(1, i).min().item<int32_t>());
  record.least = network.least;
  return record;
}

// At stage 0 every rank holds everything: rank 0 speaks for all.
bool Session::speaks() const { return stage_of(one_) > 0 || rank_ == 0; }

void Session::add(int step, const std::string& what, int64_t begin, const at::Tensor& values,
                  bool count) {
  auto& digest = record.digests[std::to_string(step + 1) + " " + what];
  if (count) digest += conformance::oracle::digest(what, 0, begin, values);
}

}  // namespace equigrad::property_tests::relations
