// Relations 1 and 8 to 15: of what a backward pass gives.
//
// Shapes, units, errors: those of relation.hpp.
// Invariants: a gradient is compared before clipping wherever the relation changes its size.
// Depends on: relation.hpp, conformance/oracle/bits.hpp.
#pragma once

#include "conformance/oracle/bits.hpp"
#include "property_tests/relations/relation.hpp"

namespace equigrad::property_tests::relations {

inline std::string zero_upstream(const json& one, Runs& runs) {
  Way way;
  way.pass = [](Session& s, const Source& from) {
    const auto output = s.output(from);
    s.engine->scale(output).backward(at::zeros_like(output));
  };
  const auto got = runs.train(one, way);
  if (got.norm != 0) return "the norm is " + std::to_string(got.norm);
  for (const auto& [name, shard] : got.gradients)
    if (shard.gradient.count_nonzero().item<int64_t>() != 0) return name + " is not zero";
  return got.gradients.contains("first") ? "" : "no gradient arrived";
}

inline std::string unused_and_frozen(const json& one, Runs& runs) {
  Session session(one, runs.context, {});
  const auto dtype = session.dtype();
  session.train();
  const ProbeNetwork before(one);
  for (const std::string name : {"unused", "frozen"}) {
    if (session.record.gradients.contains(name)) return name + " has a gradient";
    const auto report = conformance::oracle::compare(session.engine->full_parameter(name),
                                                     before[name].detach().to(dtype));
    if (!report.equal()) return name + ": " + describe(report);
  }
  return "";
}

inline std::string joint_and_separate(const json& one, Runs& runs) {
  Way joint, separate;
  joint.pass = [](Session& s, const Source& from) {
    s.engine->backward(s.loss(from) + s.network.beside_loss());
  };
  separate.pass = [](Session& s, const Source& from) {
    s.engine->backward(s.loss(from));
    s.engine->backward(s.network.beside_loss());
  };
  return parted(runs.train(one, joint), runs.train(one, separate));
}

inline std::string repeated(const json& one, Runs& runs) {
  Way same, once;
  same.source = [](Source at) { return Source{at.step, at.rank, 0}; };
  return parted(runs.train(one, same), runs.train(changed(one, "accumulation", 1), once));
}

inline std::string swapped(const json& one, Runs& runs) {
  Way way;
  way.source = [](Source at) {
    return Source{at.step, at.rank, at.micro < 2 ? 1 - at.micro : at.micro};
  };
  return parted(runs.train(one, way), runs.plain());
}

inline std::string watched(const json& one, Runs& runs) {
  Way looking, blind;
  looking.pass = [](Session& s, const Source& from) {
    s.engine->backward(s.loss(from));
    s.engine->access().full_gradient("first");
    s.engine->access().full_master("bias");
  };
  blind.observed = false;
  const auto watched = runs.train(changed(one, "profiler", true), looking);
  return parted(watched, runs.train(one, blind), is_not_observed);
}

inline std::string identity_of_scale(const json& one, Runs& runs) {
  Session session(one, runs.context, {});
  const auto loss = session.loss({0, runs.context.rank(), 0});
  const auto scaled = session.engine->scale(loss);
  if (session.engine->loss_scale() != 1) return "the loss scale is not 1";
  return scaled.is_same(loss) ? "" : "scale(loss) is another tensor";
}

inline std::vector<Relation> pass_relations() {
  const auto unscaled = [](const json& one) { return !is_fp16(one); };
  return {
      {1,
       "the same step twice gives the same bits",
       Class::Exact,
       always,
       [](const json& one, Runs& runs) { return parted(runs.train(one), runs.plain()); },
       {"drifting"}},
      {8,
       "nothing upstream gives gradients that are exactly zero",
       Class::Exact,
       always,
       zero_upstream,
       {"offset"}},
      {9,
       "what is unused or frozen keeps its bits",
       Class::Exact,
       always,
       unused_and_frozen,
       {"unused decays"}},
      {10,
       "losses on disjoint parameters may be joined",
       Class::Exact,
       always,
       joint_and_separate,
       {"second pass lost"}},
      {11,
       "activation checkpointing changes nothing",
       Class::Exact,
       always,
       [](const json& one, Runs& runs) {
         return as_plain(one, runs, [](Session& s, const Source& from) {
           s.engine->backward(s.network.loss(s.output(from, true), s.network.target(from)));
         });
       },
       {"nested pass lost"}},
      {12,
       "a micro-batch that is repeated counts once on average",
       Class::Guarded,
       [](const json& one) {
         return (accumulation_of(one) == 2 || accumulation_of(one) == 4) && adds_what_it_keeps(one);
       },
       repeated,
       {"micro_batch_dropped"}},
      {13,
       "the first two micro-batches may change places",
       Class::Guarded,
       [](const json& one) { return accumulation_of(one) >= 2 && adds_what_it_keeps(one); },
       swapped,
       {"micro_batch_dropped"}},
      {14, "who watches changes nothing", Class::Exact, always, watched, {"reading doubles"}},
      {15,
       "scale() is the identity where nothing is scaled",
       Class::Exact,
       unscaled,
       identity_of_scale,
       {"scale() is off"}},
  };
}

}  // namespace equigrad::property_tests::relations
