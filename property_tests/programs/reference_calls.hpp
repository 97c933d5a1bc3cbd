// ReferenceCalls: the bodies of ReferencePlayer, one function for each call of a program.
//
// Invariants, Shapes, Units: those of reference_player.hpp.   Errors: std::logic_error for a graph
// that can be used twice where it should not.
// Depends on: reference_player.hpp.
#pragma once

#include <limits>
#include <stdexcept>
#include <string>

#include "property_tests/programs/reference_player.hpp"

namespace equigrad::property_tests::programs {

inline Seen ReferencePlayer::play(const json& call) {
  seen_.clear();
  const std::string name = call.at("call");
  if (name == "forward") forward(call);
  if (name == "backward") backward(call);
  if (name == "throw") throwing(call);
  if (name == "twice") twice(call);
  if (name == "zero_grad") discard();
  if (name == "step") step(call);
  if (name == "boundary") boundary_ = call.at("value");
  if (name == "batch_size") stepper_.set_accumulation_steps(accumulation_ = call["accumulation"]);
  if (name == "get" && call.at("what") == "parameter") see_parameter(call.at("name"));
  if (name == "get" && call.at("what") != "parameter")
    seen_["value"] = stepper_.get(call.at("what"), call.at("name"));
  if (name == "set") set(call);
  if (name == "look") look(call);
  if (name == "grad") grad(call);
  if (name == "end") end();
  see_numbers();
  return seen_;
}

inline void ReferencePlayer::pass(int rank, const Roots& roots, const PassOptions& options) {
  at::Tensor loss;
  const double weight = options.gas ? 1.0 : static_cast<double>(accumulation_);
  stepper_.pass(
      rank, [&] { loss = differentiate(roots, options, nullptr); },
      options.style == 0 ? weight : 1.0);
  if (rank == rank_ && options.style == 0)
    seen_["returned"] = options.gas ? loss / static_cast<double>(accumulation_) : loss;
}

inline void ReferencePlayer::backward(const json& call) {
  each_rank([&](int rank) {
    Roots roots;
    for (const int slot : call.at("slots"))
      roots.push_back(kept_[static_cast<std::size_t>(rank)].at(slot));
    pass(rank, roots, pass_options(call, rank));
  });
}

// What the passes that throw leave behind is nothing.
inline void ReferencePlayer::throwing(const json& call) {
  if (!call.at("counts").get<bool>()) return;
  each_rank([&](int rank) {
    if (rank != call.at("rank") || call.at("again").get<bool>())
      pass(rank, {run(call, rank, 1)}, pass_options(call, rank));
  });
  seen_.clear();
  if (!call.at("again").get<bool>()) discard();
}

inline void ReferencePlayer::twice(const json& call) {
  each_rank([&](int rank) {
    const Roots roots = {run(call, rank, call.at("branch"))};
    pass(rank, roots, pass_options(call, rank));
    try {
      pass(rank, roots, pass_options(call, rank));
    } catch (const std::exception&) {
      return;
    }
    throw std::logic_error("expected the second backward of one graph to throw");
  });
  seen_.clear();
}

inline void ReferencePlayer::step(const json& call) {
  ++micro_steps_;
  in_window_ = call.at("acts").get<bool>() ? 0 : in_window_ + 1;
  if (!call.at("acts").get<bool>()) return;
  const auto record = stepper_.step();
  const bool error = record.skipped && !setting_.at("bf16").get<bool>();
  global_steps_ += error ? 0 : 1;
  skipped_steps_ += record.skipped && !error ? 1 : 0;
  applied_ = !record.skipped;
  norm_ = record.skipped ? std::numeric_limits<double>::quiet_NaN() : record.grad_norm;
  seen_["refused"] = number(error ? 1 : 0);
  if (!record.skipped)
    for (const auto& [name, gradient] : record.gradients) seen_["gradient " + name] = gradient;
  see_everything();
}

inline void ReferencePlayer::set(const json& call) {
  const std::string what = call.at("what"), name = call.at("name");
  const auto like = stepper_.get("master", name);
  stepper_.set(what, name, value_for(like, call.at("value")));
  if (what == "master") see_parameter(name);
}

inline void ReferencePlayer::look(const json& call) {
  const at::NoGradGuard no_grad;
  seen_["output"] = run(call, rank_, 3).output.clone();
}

inline void ReferencePlayer::grad(const json& call) {
  const auto kept = run(call, rank_, 1);
  seen_["grad"] = torch::autograd::grad({kept.loss}, {model_->weight()})[0].clone();
}

inline void ReferencePlayer::see_everything() {
  for (const auto& [name, parameter] : reference::unique_parameters(*model_)) see_parameter(name);
  for (const auto& name : trained(setting_)) {
    seen_["master " + name] = stepper_.get("master", name);
    for (const auto& state : state_names(setting_))
      seen_[state + " " + name] = stepper_.get(state, name);
  }
}

inline void ReferencePlayer::see_numbers() {
  const bool last = in_window_ + 1 >= accumulation_;
  seen_["boundary"] = number(boundary_.is_null() ? last : boundary_.get<bool>());
  seen_["applied"] = number(applied_);
  seen_["micro_steps"] = number(static_cast<double>(micro_steps_));
  seen_["global_steps"] = number(static_cast<double>(global_steps_));
  seen_["skipped_steps"] = number(static_cast<double>(skipped_steps_));
  seen_["norm"] = norm_ ? number(*norm_) : at::Tensor();
}

}  // namespace equigrad::property_tests::programs
