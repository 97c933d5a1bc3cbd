// Relations 34 and 35: of what the stations of a step do to a whole and to its pieces.
//
// Shapes, units, errors: those of relation.hpp.
// Invariants: none besides those of relation.hpp.
// Depends on: relation.hpp, engine's optimizer and shard stations, property_tests/numbers.hpp.
#pragma once

#include "conformance/oracle/bits.hpp"
#include "engine/layout/partition.hpp"
#include "engine/optimizer/update_rule.hpp"
#include "engine/shard/gradient_shard.hpp"
#include "property_tests/relations/relation.hpp"

namespace equigrad::property_tests::relations {

// Three updates of a whole, and of its pieces.
inline std::string pieces(const json& one, Runs& runs) {
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
inline std::string norm_of_shards(const json& one, Runs& runs) {
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

inline std::vector<Relation> station_relations() {
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

}  // namespace equigrad::property_tests::relations
