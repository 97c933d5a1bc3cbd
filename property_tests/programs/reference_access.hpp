// ReferenceAccess: what ReferencePlayer sets and sees of the reference.
//
// Invariants, Shapes, Units, Errors: those of reference_player.hpp.
// Depends on: reference_player.hpp.
#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "property_tests/programs/reference_player.hpp"

namespace equigrad::property_tests::programs {

inline void ReferencePlayer::set(const json& call) {
  const std::string what = call.at("what"), name = call.at("name");
  const std::size_t which = call.at("engine");
  const auto like = steppers_[which]->get("master", name);
  steppers_[which]->set(what, name, value_for(like, call.at("value")));
  if (what == "master") see_parameter(name, which);
}

inline void ReferencePlayer::look(const json& call) {
  const at::NoGradGuard no_grad;
  seen_["output"] = run(call, rank_, 3).outputs[0].clone();
}

inline void ReferencePlayer::grad(const json& call) {
  const auto kept =
      network_.run(batch_of(setting_, rank_, call.at("batch")), 1, Throw::None, false);
  seen_["grad"] = torch::autograd::grad({kept.loss}, {network_.weight()})[0].clone();
}

inline void ReferencePlayer::see_everything() {
  for (std::size_t i = 0; i < steppers_.size(); ++i) {
    for (const auto& [name, parameter] : reference::unique_parameters(*network_.models()[i]))
      see_parameter(name, i);
    for (const auto& name : trained(setting_)) {
      seen_["master " + name + of(i)] = steppers_[i]->get("master", name);
      for (const auto& state : state_names(setting_))
        seen_[state + " " + name + of(i)] = steppers_[i]->get(state, name);
    }
  }
}

inline void ReferencePlayer::see_numbers() {
  const bool last = in_window_ + 1 >= accumulation_;
  for (std::size_t i = 0; i < steppers_.size(); ++i) {
    const auto& told = told_[i];
    seen_["boundary" + of(i)] = number(boundary_.is_null() ? last : boundary_.get<bool>());
    seen_["applied" + of(i)] = number(told.applied);
    seen_["micro_steps" + of(i)] = number(static_cast<double>(micro_steps_));
    seen_["global_steps" + of(i)] = number(static_cast<double>(told.global_steps));
    seen_["skipped_steps" + of(i)] = number(static_cast<double>(told.skipped_steps));
    seen_["norm" + of(i)] = told.norm ? number(*told.norm) : at::Tensor();
    seen_["loss scale" + of(i)] = number(steppers_[i]->loss_scale());
  }
}

}  // namespace equigrad::property_tests::programs
