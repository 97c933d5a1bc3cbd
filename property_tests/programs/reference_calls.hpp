// ReferenceCalls: the bodies of ReferencePlayer, one function for each call of a program.
//
// Invariants, Shapes, Units: those of reference_player.hpp.   Errors: std::logic_error for a graph
// that can be used twice where it should not.
// Depends on: reference_player.hpp.
#pragma once

#include <functional>
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
  if (name == "batch_size") {
    accumulation_ = call["accumulation"];
    for (auto& stepper : steppers_) stepper->set_accumulation_steps(accumulation_);
  }
  if (name == "get" && call.at("what") == "parameter")
    see_parameter(call.at("name"), call.at("engine"));
  if (name == "get" && call.at("what") != "parameter")
    seen_["value"] =
        steppers_[call.at("engine").get<std::size_t>()]->get(call.at("what"), call.at("name"));
  if (name == "set") set(call);
  if (name == "look") look(call);
  if (name == "grad") grad(call);
  if (name == "end") end();
  see_numbers();
  return seen_;
}

inline void ReferencePlayer::pass(int rank, const Roots& roots, const PassOptions& options) {
  at::Tensor loss;
  PassOptions scaled = options;
  scaled.scale = steppers_[options.engine]->loss_scale();
  const double weight = options.scale_wrt_gas ? 1.0 : static_cast<double>(accumulation_);
  std::function<void()> nested = [&] { loss = differentiate(roots, scaled, nullptr); };
  for (std::size_t i = 0; i < steppers_.size(); ++i)
    nested = [&, i, inner = nested] {
      const bool weighed = options.style == 0 && i == options.engine;
      steppers_[i]->pass(rank, inner, weighed ? weight : 1.0);
    };
  nested();
  if (rank == rank_ && options.style == 0)
    seen_["returned"] = options.scale_wrt_gas ? loss / static_cast<double>(accumulation_) : loss;
}

inline void ReferencePlayer::backward(const json& call) {
  each_rank([&](int rank) {
    Roots roots;
    for (const int slot : call.at("slots"))
      roots.push_back(kept_[static_cast<std::size_t>(rank)].at(slot));
    pass(rank, roots, pass_options(call, setting_, rank));
  });
}

// What the passes that throw leave behind is nothing.
inline void ReferencePlayer::throwing(const json& call) {
  if (!call.at("counts").get<bool>()) return;
  each_rank([&](int rank) {
    if (rank != call.at("rank") || call.at("again").get<bool>())
      pass(rank, {run(call, rank, 1)}, pass_options(call, setting_, rank));
  });
  seen_.clear();
  if (!call.at("again").get<bool>()) discard();
}

inline void ReferencePlayer::twice(const json& call) {
  each_rank([&](int rank) {
    const Roots roots = {run(call, rank, call.at("branch"))};
    pass(rank, roots, pass_options(call, setting_, rank));
    try {
      pass(rank, roots, pass_options(call, setting_, rank));
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
  for (std::size_t i = 0; i < steppers_.size(); ++i) step_of(i);
  see_everything();
}

inline void ReferencePlayer::step_of(std::size_t which) {
  const auto record = steppers_[which]->step();
  auto& told = told_[which];
  const bool error = record.skipped && setting_.at("precision") == 0;
  told.global_steps += error ? 0 : 1;
  told.skipped_steps += record.skipped && !error ? 1 : 0;
  told.applied = !record.skipped;
  told.norm = record.skipped ? std::numeric_limits<double>::quiet_NaN() : record.grad_norm;
  seen_["refused" + of(which)] = number(error ? 1 : 0);
  if (record.skipped) return;
  for (const auto& [name, gradient] : record.gradients)
    seen_["gradient " + name + of(which)] = gradient;
}

}  // namespace equigrad::property_tests::programs
