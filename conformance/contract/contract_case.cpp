#include "conformance/contract/contract_case.hpp"

#include <array>
#include <utility>

#include "conformance/contract/known_mistakes.hpp"
#include "conformance/contract/programs/programs.hpp"
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
  append(all, engine_forward());
  append(all, several_engines());
  append(all, recomputation());
  append(all, accumulation());
  append(all, loss_scale());
  append(all, parameters());
  append(all, exceptions());
  append(all, the_window());
  append(all, the_step());
  append(all, window_length());
  append(all, the_update());
  append(all, rates());
  append(all, access_to_values());
  append(all, whole_parameters());
  return all;
}

// Which of a case's accumulations goes with a place: all of them are played at every stage.
int64_t accumulation_at(const Case& one, int stage, std::size_t precision, int world) {
  const auto turn = static_cast<std::size_t>(stage + world) + precision;
  return one.accumulations[turn % one.accumulations.size()];
}

}  // namespace

Case Case::on(std::vector<std::string> names) const {
  return changed(*this, &Case::models, std::move(names));
}
Case Case::accumulation(std::vector<int64_t> steps) const {
  return changed(*this, &Case::accumulations, std::move(steps));
}
Case Case::lasting(int count) const { return changed(*this, &Case::windows, count); }
Case Case::clipped(Clipping where) const { return changed(*this, &Case::clipping, where); }
Case Case::with_optimizer(std::string type) const {
  return changed(*this, &Case::optimizer, std::move(type));
}
Case Case::dropping_layers() const { return changed(*this, &Case::drops_layers, true); }
Case Case::with_grad_scaler() const { return changed(*this, &Case::grad_scaler, true); }
Case Case::with_late_collectives() const { return changed(*this, &Case::late_collectives, true); }
Case Case::with_leaf() const { return changed(*this, &Case::has_leaf, true); }
Case Case::made_within_init() const { return changed(*this, &Case::within_init, true); }
Case Case::scheduled() const { return changed(*this, &Case::schedule, true); }
Case Case::from_world(int world) const { return changed(*this, &Case::smallest_world, world); }
Case Case::answering(std::vector<std::string> known) const {
  return changed(*this, &Case::answers, std::move(known));
}

Case Case::in(std::vector<Precision> modes) const {
  return changed(*this, &Case::precisions, std::move(modes));
}

Case Case::in_every_precision() const {
  return in({Precision::Fp32, Precision::Bf16, Precision::Fp16, Precision::Fp16Static});
}
Case Case::with_fp32_from(std::size_t model) const {
  return changed(*this, &Case::fp32_from, model);
}

std::string word(Precision precision) {
  constexpr std::array kWords = {"fp32", "bf16", "fp16", "fp16-static"};
  return kWords[static_cast<std::size_t>(precision)];
}

const std::vector<Section>& sections() {
  static const std::vector<Section> kSections = {
      {"1", "Four ways into a backward pass give the same bits"},
      {"2", "Every backward adds to the accumulation window"},
      {"3", "1/accumulation is one factor, whatever the outputs look like"},
      {"4", "A pass is scaled once, by its engine's loss scale, and a step divides by that scale"},
      {"5", "Parameters reused, tied, frozen, empty, unused or used on one rank only are right"},
      {"6", "A pass that throws contributes nothing, and the engine works on"},
      {"7", "zero_grad cancels the window; nothing else reaches it, and nothing is global"},
      {"8", "step() acts at the boundary only"},
      {"9", "Gradients that are not finite are skipped or refused by every rank together"},
      {"10", "Clipping acts on the averaged gradient"},
      {"11", "Arguments of a step are checked, and the rate follows its schedule"},
      {"12", "Getters give the averaged value on all ranks; setters handle padded tails"},
      {"13", "Sums follow the documented order; masters come from unrounded weights"},
      {"14", "Whole parameters come and go together, and for the user's own code, bit for bit"},
  };
  return kSections;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = all_cases();
  return kCases;
}

Spec Spec::of_model(std::size_t which) const {
  Spec spec = *this;
  if (which >= of->fp32_from) spec.precision = Precision::Fp32;
  return spec;
}

std::string Spec::place() const {
  return ".zero" + std::to_string(stage) + "." + word(precision) + ".w" + std::to_string(world) +
         ".accumulation" + std::to_string(accumulation);
}

std::string Spec::id() const { return of->family() + place(); }

std::vector<std::string> Spec::aliases() const {
  std::vector<std::string> names;
  for (const auto& answer : of->answers)
    names.push_back("Contract." + known_mistake(answer).name + "." + of->name + place());
  return names;
}

std::map<std::string, std::string> Spec::dimensions() const {
  return {{"style", "contract"},
          {"section", of->section},
          {"case", of->name},
          {"stage", std::to_string(stage)},
          {"precision", word(precision)},
          {"ranks", std::to_string(world)},
          {"accumulate", std::to_string(accumulation)}};
}

std::vector<Spec> default_specs() {
  std::vector<Spec> specs;
  int turn = 0;
  for (const auto& one : cases()) {
    const auto modes = one.precisions.size();
    const int most = std::max(2, one.smallest_world);
    for (int stage = 0; stage < 4; ++stage)
      for (std::size_t mode = 0; mode < modes; ++mode)
        specs.push_back(
            {&one, stage, one.precisions[mode], most, accumulation_at(one, stage, mode, most)});
    for (const int world : {1, 3, 4}) {
      ++turn;
      if (world < one.smallest_world || world == most) continue;
      const int stage = turn % 4;
      const auto mode = static_cast<std::size_t>(turn / 4) % modes;
      specs.push_back(
          {&one, stage, one.precisions[mode], world, accumulation_at(one, stage, mode, world)});
    }
  }
  return specs;
}

std::vector<Spec> full_specs() {
  std::vector<Spec> specs;
  for (const auto& one : cases())
    for (int stage = 0; stage < 4; ++stage)
      for (const auto precision : one.precisions)
        for (int world = one.smallest_world; world <= 4; ++world)
          for (const int64_t accumulation : one.accumulations)
            specs.push_back({&one, stage, precision, world, accumulation});
  return specs;
}

Spec parse_contract_id(const std::string& id) {
  for (const auto& spec : full_specs())
    if (spec.id() == id) return spec;
  throw Error("contract", "expected an id such as " + full_specs().front().id() + ", got \"" + id +
                              "\". See equigrad list.");
}

}  // namespace equigrad::conformance::contract
