#include "conformance/contract/contract_case.hpp"

#include <utility>

#include "conformance/contract/programs.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::contract {
namespace {

template <class Member, class Value>
Case changed(Case one, Member Case::*member, Value value) {
  one.*member = std::move(value);
  return one;
}

void append(std::vector<Case>& to, std::vector<Case> from) {
  for (auto& one : from) to.push_back(std::move(one));
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  append(all, ways_in());
  append(all, several_backwards());
  append(all, several_engines());
  append(all, recomputation());
  append(all, accumulation());
  append(all, parameters());
  append(all, exceptions());
  append(all, the_window());
  append(all, the_step());
  append(all, window_length());
  append(all, the_update());
  append(all, rates());
  append(all, access_to_values());
  return all;
}

// Which of a case's accumulations goes with a place: all of them are played at every stage.
int64_t accumulation_at(const Case& one, int stage, bool bf16, int world) {
  const auto turn = static_cast<std::size_t>(stage + (bf16 ? 1 : 0) + world);
  return one.accumulations[turn % one.accumulations.size()];
}

}  // namespace

Case Case::on(std::vector<std::string> names) const {
  return changed(*this, &Case::models, std::move(names));
}
Case Case::gas(std::vector<int64_t> steps) const {
  return changed(*this, &Case::accumulations, std::move(steps));
}
Case Case::lasting(int count) const { return changed(*this, &Case::windows, count); }
Case Case::clipped(Clipping where) const { return changed(*this, &Case::clipping, where); }
Case Case::with_optimizer(std::string type) const {
  return changed(*this, &Case::optimizer, std::move(type));
}
Case Case::scheduled() const { return changed(*this, &Case::schedule, true); }
Case Case::from_world(int world) const { return changed(*this, &Case::smallest_world, world); }
Case Case::answering(std::vector<std::string> known) const {
  return changed(*this, &Case::answers, std::move(known));
}

const std::vector<Section>& sections() {
  static const std::vector<Section> kSections = {
      {"1", "Four ways into a backward pass give the same bits"},
      {"2", "Every backward adds to the accumulation window"},
      {"3", "1/gas is one factor, whatever the outputs look like"},
      {"5", "Parameters reused, tied, frozen, empty, unused or used on one rank only are right"},
      {"6", "A pass that throws contributes nothing, and the engine works on"},
      {"7", "zero_grad cancels the window; nothing else reaches it, and nothing is global"},
      {"8", "step() acts at the boundary only"},
      {"9", "Gradients that are not finite are skipped or refused by every rank together"},
      {"10", "Clipping acts on the averaged gradient"},
      {"11", "Arguments of a step are checked, and the rate follows its schedule"},
      {"12", "Getters give the averaged value on all ranks; setters handle padded tails"},
      {"13", "Sums follow the documented order; masters come from unrounded weights"},
  };
  return kSections;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = all_cases();
  return kCases;
}

std::string Spec::id() const {
  return "Contract." + of->section + "." + of->name + ".zero" + std::to_string(stage) +
         (bf16 ? ".bf16.w" : ".fp32.w") + std::to_string(world) + ".gas" +
         std::to_string(accumulation);
}

std::map<std::string, std::string> Spec::dimensions() const {
  return {{"style", "contract"},
          {"section", of->section},
          {"case", of->name},
          {"stage", std::to_string(stage)},
          {"precision", bf16 ? "bf16" : "fp32"},
          {"ranks", std::to_string(world)},
          {"accumulate", std::to_string(accumulation)}};
}

std::vector<Spec> default_specs() {
  std::vector<Spec> specs;
  int turn = 0;
  for (const auto& one : cases()) {
    for (int stage = 0; stage < 4; ++stage)
      for (const bool bf16 : {false, true})
        specs.push_back({&one, stage, bf16, 2, accumulation_at(one, stage, bf16, 2)});
    for (const int world : {1, 3, 4}) {
      ++turn;
      if (world < one.smallest_world) continue;
      const int stage = turn % 4;
      const bool bf16 = turn / 4 % 2 == 1;
      specs.push_back({&one, stage, bf16, world, accumulation_at(one, stage, bf16, world)});
    }
  }
  return specs;
}

std::vector<Spec> full_specs() {
  std::vector<Spec> specs;
  for (const auto& one : cases())
    for (int stage = 0; stage < 4; ++stage)
      for (const bool bf16 : {false, true})
        for (int world = one.smallest_world; world <= 4; ++world)
          for (const int64_t accumulation : one.accumulations)
            specs.push_back({&one, stage, bf16, world, accumulation});
  return specs;
}

Spec parse_contract_id(const std::string& id) {
  for (const auto& spec : full_specs())
    if (spec.id() == id) return spec;
  throw Error("contract", "expected an id such as " + full_specs().front().id() + ", got \"" + id +
                              "\". See equigrad list.");
}

}  // namespace equigrad::conformance::contract
