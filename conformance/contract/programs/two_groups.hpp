// Two groups: an engine of a few weights whose groups have settings of their own, to be saved,
// loaded and compared with another such engine; and what such comparisons are made of.
//
// Invariants: every call is the same on every rank.
// Shapes: a [5] in the first group, b [3] and c [4] in the second.
// Units: windows count updates.   Errors: whatever the engine throws.
// Depends on: play.hpp, beside.hpp, engine/engine.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conformance/contract/players/play.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {

struct TwoGroups {
  // Every element is `fill` at first.
  static std::vector<ParameterGroup> usual_groups(double fill);

  TwoGroups(Play& play, double fill) : TwoGroups(play, usual_groups(fill)) {}
  TwoGroups(Play& play, std::vector<ParameterGroup> groups,
            const Beside& beside = {.optimizer = "AdamW"});
  void train(int64_t windows);
  Seen held() const;  // masters and states of this rank

  std::vector<ParameterGroup> groups;
  std::unique_ptr<Engine> engine;
};

void add_shards(Seen& held, Engine& engine);
// The same names with the same bits.
void check_same(Play& play, const std::string& what, const Seen& got, const Seen& want);
// Returns when every rank has called it.
void wait_for_all(Play& play);

}  // namespace equigrad::conformance::contract
