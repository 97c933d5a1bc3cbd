#include "conformance/contract/contract_case.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "conformance/contract/reading/reading_cases.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::contract {
namespace {

// In the order of the contract's lines.
// clang-format off
constexpr std::array kSubjects = {
  &ways_in, &several_backwards, &where_losses_come_from, &engine_forward, &several_engines,
  &recomputation, &accumulation, &loss_scale, &parameters, &exceptions, &zero_grad,
  &beside_the_window, &the_step, &window_length, &the_update, &the_sums, &rates,
  &access_to_values, &whole_parameters, &scopes_of_gather, &lattice_sums,
  &autocast_of_the_caller, &configuration, &costs, &bytes, &profiles, &profilers,
  &profile_texts, &eigenvalues, &forecasts, &numbers, &sums, &threads, &updates, &clients,
  &rate_schedules, &rules, &orders, &launches, &contributions, &windows_of_gradients,
  &shards_of_gradients, &disagreements, &announcements, &engines_apart, &holdings, &graphs,
  &scaled_graphs, &seen_operators, &read_keys, &read_types, &read_schedules, &refused_values,
  &refused_keys, &refused_types, &refused_names, &refusals,
  &refused_calls, &checkpoints, &checkpoint_pairs, &refused_checkpoints};
// clang-format on

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (auto* subject : kSubjects)
    for (auto& one : subject()) all.push_back(std::move(one));
  return all;
}

// Its accumulation goes with the place: all of a case's are played at every stage.
Spec spec_at(const Case& one, int stage, std::size_t mode, int world) {
  const auto& steps = one.places.accumulations;
  const auto turn = static_cast<std::size_t>(stage + world) + mode;
  return {.of = &one,
          .stage = stage,
          .precision = one.places.precisions[mode],
          .world = world,
          .accumulation = steps[turn % steps.size()]};
}

}  // namespace

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
      {"15", "What an engine says of itself is so: its configuration, its costs, its bytes"},
      {"16", "Every part does what its page says, on values that are drawn"},
      {"17", "What is wrong is refused by its name, with what came and what is right"},
      {"18", "A run that is saved and loaded goes on as if it had never been interrupted"},
  };
  return kSections;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = all_cases();
  return kCases;
}

std::vector<Spec> default_specs() {
  std::vector<Spec> specs;
  int turn = 0;
  for (const auto& one : cases()) {
    const auto& places = one.places;
    const auto modes = places.precisions.size();
    const int most = std::max(2, places.smallest_world);
    if (places.plays == Plays::EveryStage)
      for (int stage = 0; stage < 4; ++stage)
        for (std::size_t mode = 0; mode < modes; ++mode)
          specs.push_back(spec_at(one, stage, mode, most));
    for (const int world : {1, 2, 3, 4}) {
      if (world == most ? places.plays == Plays::EveryStage : places.plays == Plays::Once) continue;
      ++turn;
      if (world < places.smallest_world) continue;
      specs.push_back(spec_at(one, turn % 4, static_cast<std::size_t>(turn / 4) % modes, world));
    }
  }
  return specs;
}

std::vector<Spec> full_specs() {
  std::vector<Spec> specs;
  for (const auto& one : cases())
    for (int stage = 0; stage < 4; ++stage)
      for (const auto precision : one.places.precisions)
        for (int world = one.places.smallest_world; world <= 4; ++world)
          for (const int64_t accumulation : one.places.accumulations)
            specs.push_back({.of = &one,
                             .stage = stage,
                             .precision = precision,
                             .world = world,
                             .accumulation = accumulation});
  return specs;
}

Spec parse_contract_id(const std::string& id) {
  for (const auto& spec : full_specs())
    if (spec.id() == id) return spec;
  throw Error("contract", "expected an id such as " + full_specs().front().id() + ", got \"" + id +
                              "\". See equigrad list.");
}

}  // namespace equigrad::conformance::contract
