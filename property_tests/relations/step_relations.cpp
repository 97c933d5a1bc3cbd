// Relations 34 to 41: of what a step does, and its stations to a whole and to its pieces.
#include <ATen/ATen.h>

#include <algorithm>

#include "conformance/oracle/bits.hpp"
#include "engine/layout/partition.hpp"
#include "engine/optimizer/update_rule.hpp"
#include "engine/shard/gradient_shard.hpp"
#include "property_tests/numbers.hpp"
#include "property_tests/relations/table.hpp"

namespace equigrad::property_tests::relations {
namespace {

// Three updates of a whole, and of its pieces.
std::string pieces(const json& one, Runs& runs) {
  const Session beside(one, runs.context, {});  // plants the fault
  const auto config = config_of(one, runs.context.world_size()).optimizer;
  const uint64_t seed = one.at("seed");
  const int64_t numel = 40 + static_cast<int64_t>(seed % 60);
  const auto states = optimizer::state_names(config).size();
  std::vector<at::Tensor> whole{uniform(seed, 1, numel, 1)}, cut{whole[0].clone()};
  for (std::size_t i = 0; i < states; ++i) {
    whole.push_back(at::zeros({numel}));
    cut.push_back(at::zeros({numel}));
  }
  for (int64_t step = 1; step <= 3; ++step) {
    const auto gradient = spread(seed, static_cast<uint64_t>(step) + 5, numel);
    const auto update = [&](const std::vector<at::Tensor>& all, int64_t begin, int64_t end) {
      std::vector<at::Tensor> state;
      for (std::size_t i = 1; i < all.size(); ++i) state.push_back(all[i].slice(0, begin, end));
      optimizer::update_(config, step, all[0].slice(0, begin, end),
                         gradient.slice(0, begin, end).clone(), state);
    };
    update(whole, 0, numel);
    for (int64_t begin = 0, piece = 1; begin < numel; begin += piece, piece = 1 + piece * 5 % 13)
      update(cut, begin, std::min(numel, begin + piece));
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto report = conformance::oracle::compare(cut[i], whole[i]);
    if (!report.equal()) return "of " + std::to_string(numel) + ": " + describe(report);
  }
  return "";
}

// The norm, and what clipping leaves, of a whole and of the ranks' shards.
std::string norm_of_shards(const json& one, Runs& runs) {
  const Session beside(one, runs.context, {});  // plants the fault
  const auto group = runs.context.group();
  const uint64_t seed = one.at("seed");
  const int64_t numel = 30 + static_cast<int64_t>(seed % 100);
  const auto mine = layout::Partition(numel, group->world_size()).range(group->rank());
  for (const auto type : {NormType::Two, NormType::Infinity}) {
    auto whole = spread(seed, 3, numel);
    auto shard = whole.slice(0, mine.begin, mine.end).clone();
    const double norm = shard::measure(whole, nullptr, type).norm;
    const double got = shard::measure(shard, group.get(), type).norm;
    if (got != norm) return "the norms are " + std::to_string(norm) + " and " + std::to_string(got);
    shard::clip_(whole, norm, norm / 3);
    shard::clip_(shard, got, got / 3);
    const auto report = conformance::oracle::compare(shard, whole.slice(0, mine.begin, mine.end));
    if (!report.equal()) return "clipped: " + describe(report);
  }
  return "";
}

// A step that overflows on one rank, between two that do not.
std::string overflow(const json& one, Runs& runs) {
  const Source overflowing{1, one.at("seed").get<int>() % world_of(one), accumulation_of(one) - 1};
  Way way;
  way.steps = 3;
  way.pass = [overflowing](Session& s, const Source& from) {
    const bool now = from.step == overflowing.step && from.rank == overflowing.rank &&
                     from.micro == overflowing.micro;
    s.engine->backward(s.loss(from) * (now ? 0x1p100 : 1.0));
  };
  const auto got = runs.train(one, way);
  if (got.skipped != 1) return std::to_string(got.skipped) + " steps were skipped";
  for (const auto& [key, digest] : got.digests) {
    if (!key.starts_with("1 ") || is_gradient(key) || !is_not_scale(key)) continue;
    if (got.digests.at("2" + key.substr(1)) != digest) return "it changed " + key.substr(2);
  }
  if (got.scales.at(1) == got.scales.at(0) / 2) return "";
  return "the scale went from " + std::to_string(got.scales.at(0)) + " to " +
         std::to_string(got.scales.at(1));
}

std::string other_scale(const json& one, Runs& runs) {
  auto low = one;
  low["scale_power"] = 5;
  const auto got = runs.train(low);
  if (got.skipped + runs.plain().skipped > 0 || got.least < 0x1p-14) return kDoesNotApply;
  return parted(got, runs.plain(), is_not_scale);
}

std::string no_rate(const json& one, Runs& runs) {
  Session session(changed(changed(one, "lr", 0.0), "decay", 0.0), runs.context, {});
  const ProbeNetwork before(one);
  session.train();
  for (const auto& parameter : before.parameters) {
    const auto report = conformance::oracle::compare(session.engine->full_parameter(parameter.name),
                                                     parameter.tensor.detach().to(session.dtype()));
    if (!report.equal()) return parameter.name + ": " + describe(report);
  }
  return "";
}

// Trained one step, exported, imported by a fresh engine, trained on.
std::string exported(const json& one, Runs& runs) {
  const Way way;
  Session first(one, runs.context, way), second(one, runs.context, way);
  first.step(0);
  for (const auto& parameter : first.network.parameters) {
    const auto& name = parameter.name;
    if (name == "frozen" || parameter.tensor.numel() == 0) continue;
    auto& to = second.engine->access();
    auto& from = first.engine->access();
    to.set_full_master(name, from.full_master(name));
  }
  for (auto* session : {&first, &second}) session->step(1);
  return parted(first.finish(), second.finish(),
                [](const std::string& key) { return key.starts_with("2 ") && is_not_scale(key); });
}

// Two engines under one loss; `second_first`: the other one steps first.
Record two_engines(const json& one, Runs& runs, bool second_first) {
  const auto other = changed(one, "seed", one.at("seed").get<int>() + 1);
  const Way way;
  Session a(one, runs.context, way), b(other, runs.context, way);
  a.engine->share_loss_scale(*b.engine);
  for (int step = 0; step < way.steps; ++step) {
    a.observe(step);
    b.observe(step);
    for (int micro = 0; micro < accumulation_of(one); ++micro) {
      const Source at{step, runs.context.rank(), micro};
      a.begin(at);
      a.engine->scale(a.loss(at) + b.loss(at)).backward();
      if (second_first) b.engine->step();
      a.engine->step();
      if (!second_first) b.engine->step();
    }
    a.after(step);
    b.after(step);
  }
  Record both = a.finish();
  for (const auto& [key, digest] : b.finish().digests) both.digests[key + " of b"] = digest;
  return both;
}

}  // namespace

std::vector<Relation> station_relations() {
  return {
      {34,
       "an update of pieces is the update of the whole",
       Class::Exact,
       always,
       pieces,
       {"tail"}},
      {35,
       "norm and clipping are those of the whole on any number of ranks",
       Class::Exact,
       always,
       norm_of_shards,
       {"norm of shards"}},
  };
}

std::vector<Relation> step_relations() {
  return {
      {36,
       "an overflow on one rank changes nothing, and the scale halves",
       Class::Exact,
       is_fp16,
       overflow,
       {"loss_scale.ignores_overflow"}},
      {37,
       "the first loss scale does not matter",
       Class::Guarded,
       [](const json& one) { return is_fp16(one) && one.at("wide_sums"); },
       other_scale,
       {"large scales are off"}},
      {38,
       "without rate and decay parameters stay",
       Class::Exact,
       always,
       no_rate,
       {"rate has a floor"}},
      {40,
       "masters that are exported and imported train on alike",
       Class::Guarded,
       [](const json& one) {
         return one.at("rule") == 0 && one.at("momentum") == 0.0 && !is_fp16(one);
       },
       exported,
       {"completion.gather_read_before_wait"}},
      {41,
       "the order in which engines step does not matter",
       Class::Exact,
       always,
       [](const json& one, Runs& runs) {
         return parted(two_engines(one, runs, false), two_engines(one, runs, true));
       },
       {"steps are shared"}},
  };
}

}  // namespace equigrad::property_tests::relations
