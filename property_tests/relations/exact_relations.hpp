// What relations 26 and 30 add where sums are exact: any rank may have any micro-batch, ranks may
// be passes, at any stage and bucket size, and their number may change between two steps.
//
// Invariants: losses are of one micro-batch, so a gradient does not depend on who computes it.
// Shapes, units, errors: those of relation.hpp.   Depends on: relation.hpp.
#pragma once

#include "property_tests/relations/relation.hpp"

namespace equigrad::property_tests::relations {

inline json exact_of(const json& one) {
  return changed(changed(one, "exact", true), "wide_sums", true);
}

// The same micro-batches, dealt out anew, at another stage, in other buckets.
inline std::string dealt_anew(const json& drawn, Runs& runs) {
  const auto one = exact_of(drawn);
  const int world = world_of(one), accumulation = accumulation_of(one), seed = one.at("seed");
  auto other = changed(one, "stage", (stage_of(one) + 1 + seed % 3) % 4);
  other["schedule"][0] = one.at("schedule").at(0) > 30 ? 7 : 1000;
  Way way;
  way.reversed = true;
  way.source = [=](Source at) {
    const int all = world * accumulation, dealt = (at.micro * world + at.rank + seed) % all;
    return Source{at.step, dealt / accumulation, dealt % accumulation};
  };
  return parted(runs.train(other, way), runs.train(one));
}

inline Source of_all_ranks(const Source& at, int accumulation) {
  return {at.step, at.micro / accumulation, at.micro % accumulation};
}

inline std::string exact_ranks_for_passes(const json& drawn, Runs& runs) {
  const auto one = exact_of(drawn);
  const int accumulation = accumulation_of(one), seed = one.at("seed");
  auto many = changed(one, "accumulation", accumulation * world_of(one));
  many["stage"] = (stage_of(one) + seed) % 4;
  Way passes;
  passes.world = 1;
  passes.source = [accumulation](Source at) { return of_all_ranks(at, accumulation); };
  return parted(runs.train(many, passes), runs.train(one));
}

// One step on all ranks; masters and states are read, and a new engine on one rank goes on.
inline std::string ranks_change(const json& drawn, Runs& runs) {
  auto one = exact_of(drawn);
  if (is_fp16(one)) return "";  // a new engine has a new loss scale
  one["rule"] = 0;              // its states say all: Adam counts steps, too
  one["momentum"] = 0.9;
  const auto whole = runs.train(one);
  const int accumulation = accumulation_of(one);
  Way later;
  later.world = 1;
  later.source = [accumulation](Source at) { return of_all_ranks(at, accumulation); };
  std::map<std::string, at::Tensor> momenta;
  {
    Session before(one, runs.context, {});
    before.step(0);
    for (const auto& [name, tensor, module] : before.network.parameters) {
      if (!tensor.requires_grad() || tensor.numel() == 0) continue;
      later.start[name] = before.engine->access().full_master(name);
      momenta[name] = before.engine->access().full_optimizer_state(name, "momentum_buffer");
    }
  }
  if (runs.context.rank() > 0) return "";
  Session after(changed(one, "accumulation", accumulation * world_of(one)), runs.context, later);
  for (const auto& [name, momentum] : momenta) {
    if (name == "unused") continue;
    after.engine->access().set_full_optimizer_state(name, "momentum_buffer", momentum);
  }
  after.step(1);
  return parted(after.finish(), whole,
                [](const std::string& key) { return key.starts_with("2 "); });
}

// The first of them that is broken.
inline std::string first_of(const json& one, Runs& runs,
                            const std::vector<std::string (*)(const json&, Runs&)>& checks) {
  for (const auto check : checks) {
    const auto wrong = check(one, runs);
    if (!wrong.empty() && wrong != kDoesNotApply) return wrong;
  }
  return "";
}

}  // namespace equigrad::property_tests::relations
