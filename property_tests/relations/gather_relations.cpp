// Relations 23, 27, 31 and 32: of shards, gathers, and when things move.
//
// Invariants: all go through the whole engine.
#include <ATen/ATen.h>

#include <map>
#include <utility>

#include "conformance/faults/adversary.hpp"
#include "conformance/oracle/bits.hpp"
#include "conformance/oracle/digest.hpp"
#include "property_tests/relations/table.hpp"

namespace equigrad::property_tests::relations {
namespace {

// What an engine on the first `world` ranks makes of these values: cut into shards and gathered.
std::map<std::string, at::Tensor> gathered(const json& one, RankContext& context, int world,
                                           const std::map<std::string, at::Tensor>& values) {
  if (context.rank() >= world) return {};
  Way way;
  way.world = world;
  way.start = values;
  Session session(one, context, way);
  std::map<std::string, at::Tensor> all;
  bool masters_agree = true;
  for (const auto& parameter : session.network.parameters) {
    if (parameter.tensor.numel() == 0) continue;
    all[parameter.name] = session.engine->full_parameter(parameter.name);
    if (parameter.name == "frozen") continue;
    const auto master = session.engine->access().full_master(parameter.name);
    const auto report =
        conformance::oracle::compare(master.to(session.dtype()), all[parameter.name]);
    masters_agree = masters_agree && report.equal();
  }
  if (!masters_agree) all.clear();
  return all;
}

std::string cut_and_gathered(const json& one, RankContext& context) {
  std::map<std::string, at::Tensor> values;
  const ProbeNetwork network(one);
  const auto dtype = torch_dtype(precision_of(one).param);
  for (const auto& parameter : network.parameters)
    if (parameter.tensor.numel() > 0)
      values[parameter.name] = parameter.tensor.detach().to(dtype).to(at::kFloat);
  const int first = 1 + one.at("seed").get<int>() % context.world_size();
  auto now = values;
  std::string wrong;  // said at the end: the other ranks go on, too
  for (const int world : {first, context.world_size()}) {
    const auto after = gathered(one, context, world, now);
    if (context.rank() >= world) continue;
    if (after.empty() && wrong.empty()) wrong = "a master is not its parameter";
    for (const auto& [name, value] : after) {
      now[name] = value.to(at::kFloat);
      const auto report = conformance::oracle::compare(now[name], values.at(name));
      if (!report.equal() && wrong.empty())
        wrong = std::to_string(world) + " ranks, " + name + ": " + describe(report);
    }
  }
  return wrong;
}

std::string replicas(const json& one, Runs& runs) {
  Session session(one, runs.context, {});
  session.train();
  uint64_t mine = 0;
  for (const auto& parameter : session.network.parameters) {
    const auto seen = stage_of(one) == 3 ? session.engine->full_parameter(parameter.name)
                                         : parameter.tensor.detach();
    mine += conformance::oracle::digest(parameter.name, 0, 0, seen.flatten());
  }
  const auto said = at::full({1}, static_cast<int64_t>(mine), at::kLong);
  const auto all = comm::exchange(*session.group, said);
  return all.eq(said).all().item<bool>() ? "" : "the replicas differ";
}

std::string other_schedule(const json& one, Runs& runs) {
  auto other = one;
  const int64_t seed = one.at("seed");
  other["schedule"] = {1 + seed % 50, 1 + seed / 3 % 90, seed % 7 * 10,
                       seed / 5 % 40, seed % 3 * 30,     0};
  other["offload"] = stage_of(one) > 0 && seed % 2 == 0;
  return parted(runs.train(other), runs.plain());
}

std::string under_the_adversary(const json& one, Runs& runs) {
  const uint64_t seed = one.at("seed").get<uint64_t>() + 1;
  for (const bool always_late : {false, true}) {
    Way way;
    way.wrap = [=](auto real) {
      return conformance::faults::adversarial(std::move(real), {seed, true, always_late});
    };
    const auto wrong = parted(runs.train(one, way), runs.plain());
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace

std::vector<Relation> gather_relations() {
  const auto many = [](const json& one) { return world_of(one) > 1; };
  return {
      {23,
       "parameters that are cut and gathered, over several worlds, are what they were",
       Class::Exact,
       many,
       [](const json& one, Runs& runs) { return cut_and_gathered(one, runs.context); },
       {"completion.gather_read_before_wait"}},
      {27,
       "replicas are equal after every update",
       Class::Exact,
       many,
       replicas,
       {"completion.forward_before_copy_back"}},
      {31,
       "prefetch, thresholds and offload change nothing",
       Class::Exact,
       always,
       other_schedule,
       {"later slots"}},
      {32,
       "whatever a communicator may do changes nothing",
       Class::Exact,
       many,
       under_the_adversary,
       {"completion.send_buffer_reused"}},
  };
}

}  // namespace equigrad::property_tests::relations
