// Relations 2 to 7: of a loss, and of what is done to it before the backward pass.
//
// Shapes, units, errors: those of relation.hpp.
// Invariants: a gradient is compared before clipping wherever the relation changes its size.
// Depends on: relation.hpp.
#pragma once

#include "property_tests/relations/relation.hpp"

namespace equigrad::property_tests::relations {

// Of a loss times `factor`, the gradient is `factor` times the gradient.
inline std::string scaled_loss(const json& one, Runs& runs, double factor) {
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

inline Pass tensor_backward(bool in_fp32) {
  return [in_fp32](Session& s, const Source& from) {
    const auto output = s.output(from);
    auto leaf = output.detach();
    if (in_fp32) leaf = leaf.to(at::kFloat);
    leaf.requires_grad_();
    s.network.loss(leaf, s.network.target(from)).backward();
    s.engine->scale(output).backward(leaf.grad());
  };
}

inline std::string styles_agree(const json& one, Runs& runs) {
  const auto wrong = as_plain(
      one, runs, [](Session& s, const Source& from) { s.engine->scale(s.loss(from)).backward(); });
  if (!wrong.empty() || is_fp16(one)) return wrong;
  return as_plain(one, runs, [](Session& s, const Source& from) { s.loss(from).backward(); });
}

// n times the same pass, the graph kept.
inline std::string many_backwards(const json& one, Runs& runs) {
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

inline std::vector<Relation> loss_relations() {
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

}  // namespace equigrad::property_tests::relations
