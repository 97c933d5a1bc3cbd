// EngineAccess: what EnginePlayer reads and writes of an engine, and compares.
//
// Invariants, Shapes, Errors: those of engine_player.hpp.
// Depends on: engine_player.hpp.
#pragma once

#include <algorithm>
#include <string>

#include "property_tests/programs/engine_player.hpp"

namespace equigrad::property_tests::programs {

// This rank's slice; a copy of everything, since only its bounds are used.
inline LocalShard EnginePlayer::part_of(const std::string& name, std::size_t which) const {
  const auto shards = engines_[which]->local_shards();
  return *std::find_if(shards.begin(), shards.end(),
                       [&](const LocalShard& shard) { return shard.name == name; });
}

inline void EnginePlayer::get(const json& call) {
  const std::size_t which = call.at("engine");
  auto& access = engines_[which]->access();
  const std::string what = call.at("what"), name = call.at("name");
  if (what == "parameter")
    return expect("parameter " + name + of(which), engines_[which]->full_parameter(name));
  const bool local = call.at("local");
  at::Tensor got;
  if (what == "gradient") got = local ? access.local_gradient(name) : access.full_gradient(name);
  if (what == "master") got = local ? access.local_master(name) : access.full_master(name);
  if (what != "gradient" && what != "master")
    got =
        local ? access.local_optimizer_state(name, what) : access.full_optimizer_state(name, what);
  expect("value", got, local ? part_of(name, which) : LocalShard());
}

inline void EnginePlayer::set(const json& call) {
  const std::size_t which = call.at("engine");
  auto& access = engines_[which]->access();
  const std::string what = call.at("what"), name = call.at("name");
  const auto parameter = network_.models()[which]->named_parameters()[name];
  auto value = value_for(at::empty(parameter.sizes()), call.at("value"));
  const bool local = call.at("local");
  if (local) {
    const auto part = part_of(name, which);
    value = value.flatten().slice(0, part.begin, part.end);
  }
  if (what == "gradient")
    local ? access.set_local_gradient(name, value) : access.set_full_gradient(name, value);
  else if (what == "master")
    local ? access.set_local_master(name, value) : access.set_full_master(name, value);
  else
    local ? access.set_local_optimizer_state(name, what, value)
          : access.set_full_optimizer_state(name, what, value);
  if (what == "master")
    expect("parameter " + name + of(which), engines_[which]->full_parameter(name));
}

inline void EnginePlayer::expect_everything() {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const auto shards = engines_[i]->local_shards();
    if (shards.size() != trained(setting_).size()) note("local_shards: not one for each parameter");
    for (const auto& shard : shards) {
      expect("master " + shard.name + of(i), shard.master, shard);
      if (shard.state.size() != state_names(setting_).size()) note("not as many states");
      for (const auto& [state, value] : shard.state)
        expect(state + " " + shard.name + of(i), value, shard);
    }
    for (const auto& [name, parameter] : reference::unique_parameters(*network_.models()[i]))
      expect("parameter " + name + of(i), engines_[i]->full_parameter(name));
  }
}

inline void EnginePlayer::expect_numbers() {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const auto& engine = *engines_[i];
    const auto& counters = engine.counters();
    const auto norm = engine.get_global_grad_norm();
    expect("boundary" + of(i), number(engine.is_gradient_accumulation_boundary()));
    expect("applied" + of(i), number(engine.was_step_applied()));
    expect("micro_steps" + of(i), number(static_cast<double>(counters.micro_steps)));
    expect("global_steps" + of(i), number(static_cast<double>(counters.global_steps)));
    expect("skipped_steps" + of(i), number(static_cast<double>(counters.skipped_steps)));
    expect("norm" + of(i), norm ? number(*norm) : at::Tensor());
    expect("loss scale" + of(i), number(engine.loss_scale()));
  }
}

}  // namespace equigrad::property_tests::programs
