// Relations 1 to 15: of a loss, what is done to it before the backward pass, and what the pass
// gives.
//
// Invariants: a gradient is compared before clipping wherever the relation changes its size.
#include <ATen/ATen.h>

#include "conformance/oracle/bits.hpp"
#include "property_tests/relations/table.hpp"

namespace equigrad::property_tests::relations {
namespace {

// Of a loss times `factor`, the gradient is `factor` times the gradient.
std::string scaled_loss(const json& one, Runs& runs, double factor) {
  const auto setting = unclipped(one);
  Way multiplied, plain;
  multiplied.pass = [factor](Session& s, const Source& from) {
    s.engine->backward(s.loss(from) * factor);
  };
  multiplied.factor = 1 / factor;
  multiplied.steps = plain.steps = 1;
  const auto want = runs.train(setting, plain), got = runs.train(setting, multiplied);
  for (const auto& [name, shard] : want.gradients) {  // the guard: far from what is subnormal
    const auto nonzero = shard.gradient.abs().masked_select(shard.gradient != 0);
    if (nonzero.numel() > 0 && nonzero.min().item<float>() < 0x1p-60F) return kDoesNotApply;
  }
  auto keep = [factor](const std::string& key) {
    return is_gradient(key) && (factor > 0 || key != "1 norm");
  };
  return parted(got, want, keep);
}

Pass tensor_backward(bool in_fp32) {
  return [in_fp32](Session& s, const Source& from) {
    const auto output = s.output(from);
    auto leaf = output.detach();
    if (in_fp32) leaf = leaf.to(at::kFloat);
    leaf.requires_grad_();
    s.network.loss(leaf, s.network.target(from)).backward();
    s.engine->scale(output).backward(leaf.grad());
  };
}

std::string styles_agree(const json& one, Runs& runs) {
  const auto wrong = as_plain(
      one, runs, [](Session& s, const Source& from) { s.engine->scale(s.loss(from)).backward(); });
  if (!wrong.empty() || is_fp16(one)) return wrong;
  return as_plain(one, runs, [](Session& s, const Source& from) { s.loss(from).backward(); });
}

// n times the same pass, the graph kept.
std::string many_backwards(const json& one, Runs& runs) {
  const int n = 2 + one.at("seed").get<int>() % 4;
  const bool rounds = !is_power_of_two(n);  // n g is not g's mantissa any more
  const bool is_exact = accumulation_of(one) == 1 && adds_what_it_keeps(one);
  if (!is_exact ||
      (rounds && (!one.at("wide_sums").get<bool>() || is_fp16(one) ||
                  !is_power_of_two(world_of(one)) || (stage_of(one) < 2 && world_of(one) > 1))))
    return kDoesNotApply;
  const auto setting = unclipped(one);
  Way many, plain;
  many.steps = plain.steps = 1;
  many.pass = [n](Session& s, const Source& from) {
    const auto loss = s.loss(from);
    for (int i = 1; i <= n; ++i) s.engine->backward(loss, /*retain_graph=*/i < n);
  };
  plain.factor = n;
  const auto got = runs.train(setting, many), want = runs.train(setting, plain);
  return parted(got, want, [](const std::string& key) { return key.starts_with("1 gradient"); });
}

std::string zero_upstream(const json& one, Runs& runs) {
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

std::string unused_and_frozen(const json& one, Runs& runs) {
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

std::string joint_and_separate(const json& one, Runs& runs) {
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

std::string repeated(const json& one, Runs& runs) {
  Way same, once;
  same.source = [](Source at) { return Source{at.step, at.rank, 0}; };
  return parted(runs.train(one, same), runs.train(changed(one, "accumulation", 1), once));
}

std::string swapped(const json& one, Runs& runs) {
  Way way;
  way.source = [](Source at) {
    return Source{at.step, at.rank, at.micro < 2 ? 1 - at.micro : at.micro};
  };
  return parted(runs.train(one, way), runs.plain());
}

std::string watched(const json& one, Runs& runs) {
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

std::string identity_of_scale(const json& one, Runs& runs) {
  Session session(one, runs.context, {});
  const auto loss = session.loss({0, runs.context.rank(), 0});
  const auto scaled = session.engine->scale(loss);
  if (session.engine->loss_scale() != 1) return "the loss scale is not 1";
  return scaled.is_same(loss) ? "" : "scale(loss) is another tensor";
}

}  // namespace

std::vector<Relation> loss_relations() {
  const auto unscaled = [](const json& one) { return !is_fp16(one); };
  return {
      {2,
       "the backward of an output with the loss's gradient is that of the loss",
       Class::Exact,
       unscaled,
       [](const json& one, Runs& runs) { return as_plain(one, runs, tensor_backward(false)); },
       {"scale(output) is off"}},
      {3, "the call styles agree", Class::Exact, always, styles_agree, {"scale() is off"}},
      {4,
       "in fp16 a gradient that is carried in fp32 is the loss's",
       Class::Guarded,
       is_fp16,
       [](const json& one, Runs& runs) { return as_plain(one, runs, tensor_backward(true)); },
       {"scale(output) is off"}},
      {5,
       "a loss times a power of two has that many times the gradient",
       Class::Guarded,
       unscaled,
       [](const json& one, Runs& runs) {
         return scaled_loss(one, runs, one.at("seed").get<int>() % 2 == 0 ? 0x1p-6 : 0x1p10);
       },
       {"saturated"}},
      {6,
       "the negative loss has the negative gradient",
       Class::Exact,
       unscaled,
       [](const json& one, Runs& runs) { return scaled_loss(one, runs, -1); },
       {"rectified"}},
      {7,
       "n backward passes of one graph give n gradients",
       Class::Guarded,
       always,
       many_backwards,
       {"second pass lost"}},
  };
}

std::vector<Relation> pass_relations() {
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
