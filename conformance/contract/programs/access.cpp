// 8. The window's length in the user's hands.  12. Getters and setters.
#include <ATen/ATen.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

void pass(Play& play, int64_t number) { play.backward(play.model().loss(play.batch(number))); }

// The boundary comes when it is set, early or late, and by the count again afterwards.
void boundary_set(Play& play) {
  const int64_t length = play.context().window == 0 ? 2 : play.context().window == 1 ? 5 : 3;
  const bool counted = play.context().window == 2;
  for (int64_t number = 0; number < length; ++number) {
    pass(play, number);
    if (counted)
      play.set_boundary(std::nullopt);
    else
      play.set_boundary(number + 1 == length);
    if (play.fault() && number == 0) pass(play, number + 10);
    play.step();
  }
}

// Every window has another number of micro-batches, set between windows; never within one.
void length_changed(Play& play) {
  const int64_t length = play.context().window + 1;
  play.set_accumulation(length);
  for (int64_t number = 0; number < length; ++number) {
    if (number > 0 && play.engine() != nullptr)
      play.refuse("expected to be between windows", [&] { play.set_accumulation(length); });
    pass(play, number);
    if (play.fault() && number == 0) pass(play, number);
    play.step();
  }
}

// At stages 0 and 1 passes add up under no_sync(), without step(); at 2 and 3 it is refused.
void no_sync(Play& play) {
  const auto& context = play.context();
  each_micro_batch(play, [&](int64_t number) {
    auto* engine = play.engine();
    if (engine != nullptr && context.stage >= 2) {
      play.refuse("expected ZeRO stage 0 or 1, got", [&] { (void)engine->no_sync(); });
      pass(play, number);
    } else {
      const auto guard = engine == nullptr ? nullptr : engine->no_sync();
      pass(play, number);
      play.refuse("expected to be outside of no_sync()", [&] { play.step(); });
      play.refuse("expected no guard, got one", [&] { (void)engine->no_sync(); });
    }
    if (!play.fault()) pass(play, number + 10);
  });
}

const std::vector<std::string>& accessed() {
  static const std::vector<std::string> kNames = {"encode.weight", "twice.bias", "scalar",
                                                  "head.weight", "unused.weight"};
  return kNames;
}

void get_gradients(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    pass(play, 2 * number);
    for (const auto& name : accessed()) {
      const auto whole = play.full("gradient", name);
      play.see("gradient so far " + name, play.fault() && whole.defined() ? whole * 2 : whole);
      play.see("its slice " + name, play.local("gradient", name));
    }
    pass(play, 2 * number + 1);
    play.see("gradient so far, later", play.full("gradient", "head.bias"));
  });
}

void get_masters_and_states(Play& play) {
  each_micro_batch(play, [&](int64_t number) { pass(play, number); });
  for (const auto& name : accessed())
    for (const std::string what : {"master", "exp_avg", "exp_avg_sq"}) {
      const auto whole = play.full(what, name);
      play.see(what + " of " + name, play.fault() ? whole + 1 : whole);
      play.see("slice of " + what + " of " + name, play.local(what, name));
    }
}

at::Tensor with_value(const Play& play, const at::Tensor& like) {
  return uneven_gradient(like).to(at::kFloat) + 0.125 * static_cast<double>(play.context().window);
}

void set_gradients(Play& play, bool local) {
  const auto set = [&](const std::string& name) {
    const auto value = with_value(play, play.parameter(name));
    if (local)
      play.set_local("gradient", name, value);
    else
      play.set_full("gradient", name, value);
  };
  each_micro_batch(play, [&](int64_t number) {
    pass(play, 2 * number);
    if (number == 0 && !play.fault())
      for (const auto& name : accessed()) set(name);
    play.see("gradient that was set", play.full("gradient", "twice.bias"));
    pass(play, 2 * number + 1);
    play.see("gradient after it was set", play.full("gradient", "twice.bias"));
  });
}

void set_masters_and_states(Play& play, bool local) {
  for (const auto& name : accessed())
    for (const std::string what : {"master", "exp_avg", "exp_avg_sq"}) {
      const auto value = with_value(play, play.parameter(name)).abs() / 3;
      if (local)
        play.set_local(what, name, value);
      else if (!play.fault() || what != "master")
        play.set_full(what, name, value);
    }
  if (play.fault() && local) play.set_full("master", "scalar", at::ones({}));
  each_micro_batch(play, [&](int64_t number) { pass(play, number); });
}

void unknown_names(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    pass(play, number);
    play.refuse("head.wieght", [&] { play.full("gradient", "head.wieght"); });
    play.refuse("exp_average", [&] { play.full("exp_average", "head.weight"); });
    play.refuse(play.fault() ? "no such message" : "frozen",
                [&] { play.full("master", "frozen"); });
    play.refuse("shape", [&] { play.set_full("master", "head.weight", at::ones({2})); });
  });
}

}  // namespace

std::vector<Case> window_length() {
  return {{.section = "8",
           .name = "boundary_set_by_hand",
           .sentence = "the boundary comes when it is set, then by count again",
           .fault = "a pass is counted that is not there",
           .program = boundary_set,
           .places = {.accumulations = {3}, .precisions = kEveryPrecision},
           .windows = 4,
           .answers = {"trap 16"}},
          {.section = "8",
           .name = "batch_size_changed_between_windows",
           .sentence = "a window may have another number of micro-batches than the last",
           .fault = "a pass is counted twice",
           .program = length_changed,
           .places = {.accumulations = {2}, .precisions = kEveryPrecision},
           .windows = 3},
          {.section = "8",
           .name = "no_sync",
           .sentence = "no_sync adds passes up at stages 0 and 1, and is refused later",
           .fault = "one of two passes is left out",
           .program = no_sync,
           .places = {.precisions = kEveryPrecision}}};
}

std::vector<Case> access_to_values() {
  const auto by = [](auto program, bool local) {
    return [program, local](Play& play) { program(play, local); };
  };
  return {{.section = "12",
           .name = "gradient_so_far",
           .sentence = "the gradient so far is the average over all ranks, at any time",
           .fault = "twice the value is seen",
           .program = get_gradients,
           .places = {.precisions = kEveryPrecision},
           .clipping = Clipping::Above,
           .answers = {"trap 13"}},
          {.section = "12",
           .name = "masters_and_states",
           .sentence = "masters and states are given whole and by slice",
           .fault = "another value is seen",
           .program = get_masters_and_states,
           .places = {.precisions = kEveryPrecision}},
          {.section = "12",
           .name = "gradient_set_whole",
           .sentence = "later passes add to a gradient that was set",
           .fault = "it is not set",
           .program = by(set_gradients, false),
           .places = {.precisions = kEveryPrecision},
           .answers = {"trap 14"}},
          {.section = "12",
           .name = "gradient_set_by_slice",
           .sentence = "so they do when each rank sets its slice",
           .fault = "it is not set",
           .program = by(set_gradients, true),
           .places = {.precisions = kEveryPrecision},
           .answers = {"trap 14"}},
          {.section = "12",
           .name = "masters_and_states_set_whole",
           .sentence = "values that were set are trained on, tails too",
           .fault = "the master is not set",
           .program = by(set_masters_and_states, false),
           .places = {.accumulations = {1, 2}, .precisions = kEveryPrecision},
           .answers = {"trap 14"}},
          {.section = "12",
           .name = "masters_and_states_set_by_slice",
           .sentence = "so are those of slices",
           .fault = "one master gets another value",
           .program = by(set_masters_and_states, true),
           .places = {.accumulations = {1, 2}, .precisions = kEveryPrecision},
           .answers = {"trap 14"}},
          {.section = "12",
           .name = "names_that_are_not_there",
           .sentence = "a name or shape that does not fit is refused",
           .fault = "another message is expected",
           .program = unknown_names}};
}

}  // namespace equigrad::conformance::contract
