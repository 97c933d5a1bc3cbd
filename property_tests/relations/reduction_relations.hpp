// Relations 24 to 29: of sums over ranks.
//
// Shapes, units, errors: those of relation.hpp.
// Invariants: a gradient is compared before clipping wherever the relation changes its size.
// Depends on: exact_relations.hpp.
#pragma once

#include "property_tests/relations/exact_relations.hpp"

namespace equigrad::property_tests::relations {

inline std::string other_stage(const json& one, Runs& runs) {
  const int stage = stage_of(one), seed = one.at("seed");
  const int other = accumulation_of(one) == 1 ? (stage + 1 + seed % 3) % 4 : stage ^ 1;
  return parted(runs.train(changed(one, "stage", other)), runs.plain());
}

inline std::string other_buckets(const json& one, Runs& runs) {
  auto other = one;
  other["schedule"][0] = one.at("schedule").at(0) > 30 ? 7 : 1000;
  Way way;
  way.reversed = true;
  return parted(runs.train(other, way), runs.plain());
}

inline std::string neighbours(const json& one, Runs& runs) {
  Way way;
  way.source = [](Source at) { return Source{at.step, at.rank ^ 1, at.micro}; };
  return parted(runs.train(one, way), runs.plain());
}

inline std::string same_data(const json& one, Runs& runs) {
  Way same, alone;
  same.source = alone.source = [](Source at) { return Source{at.step, 0, at.micro}; };
  alone.world = 1;
  return parted(runs.train(one, alone), runs.train(one, same));
}

inline std::string one_rank(const json& one, Runs& runs) {
  const auto setting = unclipped(one);
  const int only = one.at("seed").get<int>() % world_of(one);
  Way of_all, alone;
  of_all.steps = alone.steps = 1;
  of_all.pass = [only](Session& s, const Source& from) {
    s.engine->backward(s.loss(from) * (from.rank == only ? 1.0 : 0.0));
  };
  of_all.factor = world_of(one);
  alone.source = [only](Source at) { return Source{at.step, only, at.micro}; };
  alone.world = 1;
  return parted(runs.train(setting, alone), runs.train(setting, of_all), is_gradient);
}

inline std::vector<Relation> reduction_relations() {
  const auto pairs = [](const json& one) { return world_of(one) == 2 || world_of(one) == 4; };
  return {
      {24,
       "stages agree: all with one micro-batch, otherwise 0 with 1 and 2 with 3",
       Class::Exact,
       always,
       other_stage,
       {"tail", "norm of shards"}},
      {25,
       "bucket size and the order of parameters change nothing",
       Class::Exact,
       always,
       other_buckets,
       {"later slots"}},
      {26,
       "neighbouring ranks may change their data, all of them where sums are exact",
       Class::Guarded,
       [](const json& one) { return world_of(one) > 1; },
       [pairs](const json& one, Runs& runs) {
         if (!pairs(one)) return dealt_anew(one, runs);
         return first_of(one, runs, {neighbours, dealt_anew});
       },
       {"micro_batch_dropped"}},
      {28,
       "the same data on every rank train as on one rank",
       Class::Guarded,
       pairs,
       same_data,
       {"averaged_twice"}},
      {29,
       "the gradient of one rank alone is averaged to its share",
       Class::Guarded,
       pairs,
       one_rank,
       {"averaged_twice"}},
  };
}

}  // namespace equigrad::property_tests::relations
