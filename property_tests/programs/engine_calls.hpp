// EngineCalls: the bodies of EnginePlayer, one function for each call of a program.
//
// Invariants, Shapes, Errors: those of engine_player.hpp.
// Units: none.
// Depends on: engine_player.hpp.
#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <string>
#include <vector>

#include "property_tests/programs/engine_player.hpp"

namespace equigrad::property_tests::programs {

inline std::string EnginePlayer::play(const json& call, const Seen& want) {
  want_ = &want;
  const std::string name = call.at("call");
  if (name == "forward") kept_[call.at("slot")] = run(call, branch_of(call, rank_));
  if (name == "backward") backward(call);
  if (name == "throw") throwing(call);
  if (name == "twice") twice(call);
  window(call);
  if (name == "step") step(call);
  if (name == "get") get(call);
  if (name == "set") set(call);
  if (name == "look") look(call);
  if (name == "grad") {
    const auto kept = network_.run(batch(call), 1, Throw::None, false);
    expect("grad", torch::autograd::grad({kept.loss}, {network_.weight()})[0]);
  }
  if (name == "refuse") refuse(call.at("what"));
  if (name == "end") {
    guards_.clear();
    for (std::size_t i = 0; i < engines_.size(); ++i)
      for (const auto& parameter : trained(setting_))
        expect("so far " + parameter + of(i), engines_[i]->access().full_gradient(parameter));
    expect_everything();
  }
  expect_numbers();
  return wrong_;
}

// What is asked of every engine alike.
inline void EnginePlayer::window(const json& call) {
  const std::string name = call.at("call");
  if (name == "zero_grad") each_engine([](Engine& engine) { engine.zero_grad(); });
  if (name == "boundary") {
    const auto& value = call.at("value");
    const auto set = value.is_null() ? std::nullopt : std::optional<bool>(value.get<bool>());
    each_engine([&](Engine& engine) { engine.set_gradient_accumulation_boundary(set); });
  }
  if (name == "no_sync") each_engine([&](Engine& engine) { guards_.push_back(engine.no_sync()); });
  if (name == "end_no_sync") guards_.clear();
  if (name == "batch_size") {
    const auto size = call["accumulation"].get<int64_t>() * 2 * setting_.at("world").get<int64_t>();
    each_engine([&](Engine& engine) { engine.set_train_batch_size(size); });
  }
}

inline void EnginePlayer::backward(const json& call) {
  Roots roots;
  for (const int slot : call.at("slots")) roots.push_back(kept_.at(slot));
  const auto options = pass_options(call, setting_, rank_);
  const auto returned = differentiate(roots, options, engines_[options.engine].get());
  if (options.style == 0) expect("returned", returned);
  for (const auto& model : network_.models())
    if (model->weight().grad().defined()) note(".grad is defined after a pass");
}

// The ranks that do not throw get an error where they are told, and count the pass where not.
inline void EnginePlayer::throwing(const json& call) {
  const auto& one = call.at("rank");
  const bool throws = one.is_null() || one == rank_, counts = call.at("counts");
  constexpr std::array kPlaces = {Throw::Midway, Throw::Top, Throw::Late};
  const auto where = throws ? kPlaces[call.at("place").get<std::size_t>()] : Throw::None;
  const auto options = pass_options(call, setting_, rank_);
  const auto pass = [&](Throw at_place) {
    differentiate({run(call, 1, at_place)}, options, engines_[options.engine].get());
  };
  if (throws)
    fails({"planted", "got an exception on rank"}, [&] { pass(where); });
  else if (counts)
    pass(where);
  else
    fails({"got an exception on rank"}, [&] { pass(where); });
  if (call.at("probe"))
    each_engine([&](Engine& engine) {
      fails({"as many backward passes"}, [&] { engine.access().full_gradient("first.weight"); });
    });
  if (throws && call.at("again")) pass(Throw::None);
  if (counts && !call.at("again")) each_engine([](Engine& engine) { engine.zero_grad(); });
}

inline void EnginePlayer::twice(const json& call) {
  const Roots roots = {run(call, call.at("branch"))};
  const auto options = pass_options(call, setting_, rank_);
  differentiate(roots, options, engines_[options.engine].get());
  fails({"second time", "got an exception on rank"},
        [&] { differentiate(roots, options, engines_[options.engine].get()); });
}

inline void EnginePlayer::step(const json& call) {
  if (!call.at("acts").get<bool>()) return each_engine([](Engine& engine) { engine.step(); });
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    observed_[i] = 0;
    if (want_->at("refused" + of(i)).item<double>() != 0)
      fails({"expected finite gradients"}, [&] { engines_[i]->step(); });
    else
      engines_[i]->step();
    if (observed_[i] != want_->at("applied" + of(i)).item<double>())
      note("on_step: not called as often");
  }
  expect_everything();
}

inline void EnginePlayer::look(const json& call) {
  if (call.at("alone") && rank_ != 0) return;
  const at::NoGradGuard no_grad;
  expect("output", run(call, 3).outputs[0]);
}

}  // namespace equigrad::property_tests::programs
