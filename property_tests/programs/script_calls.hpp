// ScriptCalls: the bodies of Script, one function for each kind of command.
//
// Invariants, Units: those of script.hpp.   Errors: none.
// Depends on: script.hpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "property_tests/programs/script.hpp"

namespace equigrad::property_tests::programs {

inline void Script::forward(int slot, int way) {
  way %= 12;
  const int branch = way < 6 ? way : way < 11 ? way - 6 : 5;
  slots_[static_cast<std::size_t>(slot)] = {true, branch == 5};
  emit({{"call", "forward"},
        {"slot", slot},
        {"batch", batches_++},
        {"branch", branch},
        {"by_rank", way >= 6}});
}

// b: which graphs, c: 1 keeps them, 2 is without 1/accumulation, 3 is infinite.
inline void Script::backward(const CommandSeed& drawn) {
  std::vector<int> chosen = {drawn.b % 3};
  if (drawn.b / 3 % 3 == 1) chosen.push_back((drawn.b + 1) % 3);
  bool nothing = false;
  for (const int slot : chosen) {
    auto& place = slots_[static_cast<std::size_t>(slot)];
    if (!place.live) forward(slot, drawn.d);
    nothing = nothing || place.nothing;
    place.live = drawn.c % 3 == 1;
  }
  // A plain call that reaches no parameter is not seen by the engine.
  const int style = nothing ? 0 : drawn.a % 4;
  emit({{"call", "backward"},
        {"slots", chosen},
        {"style", style},
        {"retain", drawn.c % 3 == 1},
        {"scale_wrt_gas", style != 0 || drawn.c % 3 != 2},
        {"infinite", drawn.c % 20 == 19},
        {"engine", nothing ? 0 : engine(drawn.d)}});
  count_pass();
}

inline void Script::step(const CommandSeed& drawn) {
  if (guarded_ && drawn.a % 3 == 1) return refuse("step in no_sync");
  if (guarded_) end_no_sync();
  if (most_ == 0 && drawn.a % 4 == 1) return refuse("step without backward");
  if (least_ == 0) backward(drawn);
  const bool acts = boundary_.value_or(in_window_ + 1 >= accumulation_);
  emit({{"call", "step"}, {"acts", acts}});
  in_window_ = acts ? 0 : in_window_ + 1;
  least_ = most_ = 0;
  if (acts) slots_ = {};
}

inline void Script::boundary(const CommandSeed& drawn) {
  boundary_.reset();
  if (drawn.a % 3 != 0) boundary_ = drawn.a % 3 == 1;
  emit({{"call", "boundary"}, {"value", boundary_ ? json(*boundary_) : json()}});
}

inline void Script::no_sync(const CommandSeed& drawn) {
  if (stage_ >= 2) return refuse("no_sync at this stage");
  if (guarded_) return drawn.a % 3 == 1 ? refuse("nested no_sync") : end_no_sync();
  guarded_ = true;
  emit({{"call", "no_sync"}});
}

inline void Script::batch_size(const CommandSeed& drawn) {
  if (in_window_ != 0 || least_ != 0) return refuse("batch size in a window");
  if (most_ != 0) return;  // ranks differ: some would accept it
  accumulation_ = 1 + drawn.a % 4;
  emit({{"call", "batch_size"}, {"accumulation", accumulation_}});
}

// a: on which rank, b: where, c: in which style, d: what comes of it.
inline void Script::throwing(const CommandSeed& drawn) {
  const bool one = world_ > 1 && drawn.a % 3 != 0, top = drawn.b % 3 == 1;
  // Where gradients are sent in every pass the others are told, once this rank's pass has begun. A
  // plain call that throws before it reaches a parameter has not: the others wait for it.
  const bool counts = one && (stage_ < 2 || (top && drawn.c % 4 != 0));
  const bool again = counts && (stage_ >= 2 || drawn.d % 2 == 0);
  emit({{"call", "throw"},
        {"rank", one ? json(drawn.a % world_) : json()},
        {"place", drawn.b % 3},
        {"style", drawn.c % 4},
        {"counts", counts},
        {"again", again},
        {"batch", batches_++},
        {"engine", engine(drawn.c / 4)},
        {"probe", counts && stage_ < 2 && drawn.d % 3 == 1}});
  if (counts) ++most_;
  if (again) ++least_;
}

inline void Script::access(const std::string& call, const CommandSeed& drawn) {
  std::vector<std::string> kinds = {"gradient", "master"};
  if (call == "get") kinds.push_back("parameter");
  kinds.insert(kinds.end(), states_.begin(), states_.end());
  const auto& what = kinds[static_cast<std::size_t>(drawn.a) % kinds.size()];
  const bool local = what != "parameter" && drawn.c % 2 == 1;
  json one = {{"call", call},
              {"what", what},
              {"name", name(drawn.b)},
              {"local", local},
              {"engine", engine(drawn.d)}};
  if (call == "set") one["value"] = values_++;
  emit(std::move(one));
  if (call == "set" && what == "master") slots_ = {};
}

inline void Script::misuse(const CommandSeed& drawn) {
  std::vector<std::string> kinds = {"backward of an output",
                                    "unknown name",
                                    "unknown state",
                                    "another shape",
                                    "batch size that is no multiple",
                                    "scale without a graph",
                                    "keyword without a scheduler"};
  if (frozen_) kinds.push_back("frozen name");
  if (fp16_) kinds.insert(kinds.end(), {"unscaled loss", "loss scaled twice"});
  if (world_ > 1) kinds.insert(kinds.end(), {"values that differ", "another call on rank 0"});
  refuse(kinds[static_cast<std::size_t>(drawn.a) % kinds.size()]);
}

}  // namespace equigrad::property_tests::programs
