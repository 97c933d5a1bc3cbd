// EngineCalls: the bodies of EnginePlayer, one function for each call of a program.
//
// Invariants, Shapes, Errors: those of engine_player.hpp.
// Units: none.
// Depends on: engine_player.hpp.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "property_tests/programs/engine_player.hpp"

namespace equigrad::property_tests::programs {

inline std::string EnginePlayer::play(const json& call, const Seen& want) {
  want_ = &want;
  const std::string name = call.at("call");
  if (name == "forward") kept_[call.at("slot")] = model_->run(batch(call), branch_of(call, rank_));
  if (name == "backward") backward(call);
  if (name == "throw") throwing(call);
  if (name == "twice") twice(call);
  if (name == "zero_grad") engine_->zero_grad();
  if (name == "step") step(call);
  if (name == "boundary") {
    const auto& value = call.at("value");
    engine_->set_gradient_accumulation_boundary(
        value.is_null() ? std::nullopt : std::optional<bool>(value.get<bool>()));
  }
  if (name == "no_sync") guard_ = engine_->no_sync();
  if (name == "end_no_sync") guard_.reset();
  if (name == "batch_size")
    engine_->set_train_batch_size(call["accumulation"].get<int64_t>() * 2 *
                                  setting_.at("world").get<int64_t>());
  if (name == "get") get(call);
  if (name == "set") set(call);
  if (name == "look") look(call);
  if (name == "grad") {
    const auto kept = model_->run(batch(call), 1);
    expect("grad", torch::autograd::grad({kept.loss}, {model_->weight()})[0]);
  }
  if (name == "refuse") refuse(call.at("what"));
  if (name == "end") {
    guard_.reset();
    for (const auto& parameter : trained(setting_))
      expect("so far " + parameter, engine_->access().full_gradient(parameter));
    expect_everything();
  }
  expect_numbers();
  return wrong_;
}

inline void EnginePlayer::backward(const json& call) {
  Roots roots;
  for (const int slot : call.at("slots")) roots.push_back(kept_.at(slot));
  const auto options = pass_options(call, rank_);
  const auto returned = differentiate(roots, options, engine_.get());
  if (options.style == 0) expect("returned", returned);
  if (model_->weight().grad().defined()) note(".grad is defined after a pass");
}

// The ranks that do not throw get an error where they are told, and count the pass where not.
inline void EnginePlayer::throwing(const json& call) {
  const auto& one = call.at("rank");
  const bool throws = one.is_null() || one == rank_, counts = call.at("counts");
  constexpr std::array kPlaces = {Throw::Midway, Throw::Top, Throw::Late};
  const auto where = throws ? kPlaces[call.at("place").get<std::size_t>()] : Throw::None;
  const auto options = pass_options(call, rank_);
  const auto run = [&](Throw at_place) {
    differentiate({model_->run(batch(call), 1, at_place)}, options, engine_.get());
  };
  if (throws)
    fails({"planted", "got an exception on rank"}, [&] { run(where); });
  else if (counts)
    run(where);
  else
    fails({"got an exception on rank"}, [&] { run(where); });
  if (call.at("probe"))
    fails({"as many backward passes"}, [&] { engine_->access().full_gradient("first.weight"); });
  if (throws && call.at("again")) run(Throw::None);
  if (counts && !call.at("again")) engine_->zero_grad();
}

inline void EnginePlayer::twice(const json& call) {
  const Roots roots = {model_->run(batch(call), call.at("branch"))};
  const auto options = pass_options(call, rank_);
  differentiate(roots, options, engine_.get());
  fails({"second time", "got an exception on rank"},
        [&] { differentiate(roots, options, engine_.get()); });
}

inline void EnginePlayer::step(const json& call) {
  if (!call.at("acts").get<bool>()) return engine_->step();
  observed_ = 0;
  const bool refused = want_->at("refused").item<double>() != 0;
  if (refused)
    fails({"expected finite gradients"}, [&] { engine_->step(); });
  else
    engine_->step();
  if (observed_ != want_->at("applied").item<double>()) note("on_step: not called as often");
  expect_everything();
}

inline void EnginePlayer::look(const json& call) {
  if (call.at("alone") && rank_ != 0) return;
  const at::NoGradGuard no_grad;
  expect("output", model_->run(batch(call), 3).output);
}

}  // namespace equigrad::property_tests::programs
