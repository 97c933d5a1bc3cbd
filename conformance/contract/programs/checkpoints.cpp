// 18. A run that is saved and loaded into new engines, on models with other weights, goes on as the
// reference, which was never interrupted.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/players/settings.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What an engine says of its progress.
std::vector<double> progress(Play& play, std::size_t which) {
  const auto& engine = *play.engine(which);
  const auto& counters = engine.counters();
  const auto theta = engine.layer_drop();
  std::vector<double> all = {static_cast<double>(counters.micro_steps),
                             static_cast<double>(counters.global_steps),
                             static_cast<double>(counters.skipped_steps),
                             static_cast<double>(engine.was_step_applied()),
                             engine.loss_scale(),
                             static_cast<double>(theta.progressive_layer_drop),
                             theta.pld_theta,
                             engine.get_global_grad_norm().value_or(-1)};
  if (std::isnan(all.back())) all.back() = -2;  // equals itself
  for (const double rate : engine.get_lr()) all.push_back(rate);
  return all;
}

// Before every window, the first too. The wrong way loads weights alone.
void resume(Play& play, Restart how = {}) {
  if (play.fault()) how.load.module_only = true;
  const bool is_engine = play.engine() != nullptr;
  const auto before = is_engine ? progress(play, 0) : std::vector<double>();
  play.restart(how);
  if (is_engine)
    play.check("a loaded engine is as far as the saved one", progress(play, 0) == before);
}

void train(Play& play) {
  each_micro_batch(play,
                   [&](int64_t number) { play.backward(play.model().loss(play.batch(number))); });
}

void goes_on(Play& play) {
  resume(play);
  train(play);
}

// Of each window other heads, so that their updates count from different windows on.
void used_now_and_then(Play& play) {
  resume(play);
  const auto used = static_cast<std::size_t>(play.context().window % 3);
  each_micro_batch(play, [&](int64_t number) {
    play.backward(play.as<Heads>().loss_through(used, play.batch(number)));
  });
}

// From its own stage by one, then by two, then by three: of all stages that is every pair.
void through_every_stage(Play& play) {
  constexpr std::array kFurther = {0, 1, 3, 6};
  const auto& context = play.context();
  const int further = kFurther.at(static_cast<std::size_t>(context.window));
  resume(play, {.stage = (context.stage + further) % 4});
  train(play);
}

// Stages 0 and 1 add in one order, and so do 2 and 3.
void to_the_stage_beside(Play& play) {
  const auto& context = play.context();
  resume(play, {.stage = context.window % 2 == 0 ? context.stage : context.stage ^ 1});
  train(play);
}

// The last rank's second head is infinite in these windows.
void overflow_in(Play& play, const std::vector<int64_t>& windows) {
  resume(play);
  auto& heads = play.as<Heads>();
  const auto& context = play.context();
  const bool is_bad = context.precision != Precision::Fp32 && context.rank + 1 == context.world &&
                      std::find(windows.begin(), windows.end(), context.window) != windows.end();
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    auto loss = heads.loss_through(0, batch) + heads.loss_through(1, batch);
    if (is_bad && number == 0) loss = loss + (heads.tops[1]->bias.to(at::kFloat) * kInfinity).sum();
    play.backward(loss);
  });
  play.see("loss scale", at::scalar_tensor(play.loss_scale(0), at::kDouble));
}

void drops_layers(Play& play) {
  resume(play);
  auto& model = play.as<Dropper>();
  each_micro_batch(play, [&](int64_t number) {
    const auto input = play.batch(number).input;
    auto* engine = play.engine();
    const double theta = layer_drop_theta(play.context().window);
    const auto output =
        engine != nullptr ? engine->forward(model, input) : model.forward(input, {true, theta});
    play.backward(uneven(output) + uneven(model.first->weight));
  });
}

// Under one loss scale where there is one, which new engines share anew.
void several_engines_go_on(Play& play) {
  resume(play);
  play.share_loss_scale(1, 0);
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto first = uneven(play.as<Tower>(0).forward(batch.input));
    const auto second = play.model(1).loss(batch);
    play.backward(first + second, {.engine = 0});
  });
}

// Between a save and a load the engines train with other batches.
void comes_back(Play& play) {
  if (play.context().window > 0)
    play.detour([&] {
      each_micro_batch(play, [&](int64_t number) {
        play.backward(play.model().loss(play.batch(number + 10)) * 0.5);
      });
    });
  train(play);
}

// Only what is asked for is loaded: before the third window, when there is something to lose.
void loads_part(Play& play, const LoadOptions& options) {
  if (play.context().window == 2) play.restart(play.fault() ? Restart{} : Restart{.load = options});
  train(play);
}

// In the middle of a window nothing is saved, and the window stays.
void refused_in_a_window(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    play.backward(play.model().loss(play.batch(number)));
    if (play.fault()) play.backward(play.model().loss(play.batch(number)));
    const std::string between = "expected to be between two accumulation windows";
    play.refuse(between, [&] { play.engine()->save_checkpoint(play.folder(), "midway"); });
    play.refuse(between, [&] { play.engine()->load_checkpoint(play.folder(), "midway"); });
    play.see("gradient after the refusal", play.full("gradient", "head.weight"));
  });
}

struct Named {
  const char* name;
  const char* sentence;
  void (*program)(Play&);
};

Case case_of(const Named& named, Case rest) {
  rest.section = "18";
  rest.name = named.name;
  rest.sentence = named.sentence;
  rest.program = named.program;
  if (rest.fault.empty()) rest.fault = "weights alone are loaded";
  return rest;
}

std::vector<Case> of_what_is_trained() {
  return {
      case_of({"goes_on", "a run that is saved and loaded before every window goes on as it was",
               goes_on},
              {.places = {.precisions = kEveryPrecision}, .windows = 3}),
      case_of({"goes_on_with_momentum", "so does one with SGD's momentum, clipped", goes_on},
              {.places = {.precisions = {Precision::Fp32}, .smallest_world = 3},
               .windows = 3,
               .clipping = Clipping::Above,
               .optimizer = "SGD"}),
      case_of({"goes_on_with_low_masters", "so do masters and states of 16 bits", goes_on},
              {.places = {.precisions = {Precision::Bf16, Precision::Fp16}},
               .windows = 3,
               .features = {Feature::LowMasters}}),
      case_of({"goes_on_with_pages_that_stay", "so does one with a late wire and pages that stay",
               goes_on},
              {.places = {.precisions = {Precision::Bf16}},
               .windows = 2,
               .features = {Feature::LateWire, Feature::SmallPagesStay}}),
      case_of(
          {"goes_on_within_init", "so does a model that is made in zero::Init's scope", goes_on},
          {.models = {"tower"},
           .places = {.precisions = {Precision::Bf16}},
           .windows = 2,
           .features = {Feature::WithinInit}}),
      case_of({"used_now_and_then", "every parameter counts its own updates", used_now_and_then},
              {.models = {"heads"}, .windows = 5}),
      case_of({"at_every_other_stage", "in the exact order a run goes on at any other stage",
               through_every_stage},
              {.places = {.precisions = {Precision::Bf16, Precision::Fp16}},
               .windows = 4,
               .features = {Feature::ExactSums}}),
      case_of({"at_the_stage_beside", "in the documented order stages 0 and 1 are one, and 2 and 3",
               to_the_stage_beside},
              {.places = {.precisions = {Precision::Fp32, Precision::Fp16Static}}, .windows = 3}),
      case_of({"several_engines", "engines save into one folder, each under its own tag",
               several_engines_go_on},
              {.models = {"tower", "irregular"},
               .places = {.precisions = {Precision::Bf16, Precision::Fp16}},
               .windows = 3}),
      case_of({"back_in_the_same_engine", "an engine that loads has forgotten what came since",
               comes_back},
              {.fault = "nothing is loaded",
               .places = {.precisions = {Precision::Fp32, Precision::Fp16}},
               .windows = 3})};
}

std::vector<Case> of_what_follows_steps() {
  Case scale = case_of({"loss_scale_with_its_history",
                        "overflows that were borne and steps since the last one count on",
                        [](Play& play) {
                          overflow_in(play, {1, 3, 4, 8});
                        }},
                       {.models = {"heads"},
                        .places = {.precisions = {Precision::Fp16}},
                        .windows = 10,
                        .features = {Feature::PatientScale}});
  Case torch_scale = scale;
  torch_scale.name = "loss_scale_of_torch";
  torch_scale.sentence = "so do the good steps of torch's scaler";
  torch_scale.program = [](Play& play) { overflow_in(play, {2}); };
  torch_scale.windows = 7;
  torch_scale.features = {Feature::GradScaler};
  return {scale, torch_scale,
          case_of({"schedule", "the schedule goes on from the applied updates, skipped ones or not",
                   [](Play& play) { overflow_in(play, {2}); }},
                  {.models = {"heads"},
                   .places = {.precisions = {Precision::Fp32, Precision::Fp16}},
                   .windows = 6,
                   .features = {Feature::RateSchedule}}),
          case_of({"layer_drop", "theta goes on falling", drops_layers},
                  {.models = {"dropper"},
                   .places = {.precisions = {Precision::Fp32}},
                   .windows = 5,
                   .features = {Feature::LayerDrop}})};
}

}  // namespace

std::vector<Case> checkpoints() {
  auto all = of_what_is_trained();
  for (auto& one : of_what_follows_steps()) all.push_back(std::move(one));
  const auto part = [&](Named named, LoadOptions options, Case rest) {
    rest.fault = "all is loaded";
    rest.windows = 3;
    auto& added = all.emplace_back(case_of(named, std::move(rest)));
    added.program = [options](Play& play) { loads_part(play, options); };
  };
  part({"without_states", "optimizer_states = false: states begin anew", nullptr},
       {.optimizer_states = false}, {.places = {.precisions = {Precision::Fp32}}});
  part({"without_the_schedule", "lr_scheduler_states = false: the schedule begins anew", nullptr},
       {.lr_scheduler_states = false},
       {.places = {.precisions = {Precision::Fp32}}, .features = {Feature::RateSchedule}});
  part({"weights_alone", "module_only: masters are the saved ones, and all else begins anew",
        nullptr},
       {.module_only = true}, {.places = {.precisions = {Precision::Bf16, Precision::Fp16}}});
  all.push_back(case_of(
      {"refused_in_a_window", "saves and loads in the middle of a window are refused, and it stays",
       refused_in_a_window},
      {.fault = "there is a pass more",
       .places = {.accumulations = {3, 2}, .precisions = {Precision::Fp32, Precision::Fp16}}}));
  return all;
}

}  // namespace equigrad::conformance::contract
