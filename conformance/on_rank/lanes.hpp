// Lanes: what a rank compared in a case, by kind, and how it came out.
//
// Exact lane: losses, loss scale, skipped steps, gradient norm, gradient shards, master weights and
// states of this rank, and every whole parameter, at every step; and what getters.hpp,
// rest_ledger.hpp and caller_state.hpp judge. Bounded lane: the gradient of the first step that is
// applied against the higher-precision run, the update of every step from its actual inputs.
//
// Invariants: every comparison of elements counts, whether it held or not.
// Shapes: shards are flat.   Units: steps and micro-batches count from 0 in a Site, from 1 in
// words.
// Errors: none.
// Depends on: diagnosis/diagnosis.hpp, diagnosis/first_difference.hpp, oracle/other_rules.hpp,
// verdict/lane_tally.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "conformance/diagnosis/diagnosis.hpp"
#include "conformance/diagnosis/first_difference.hpp"
#include "conformance/oracle/other_rules.hpp"
#include "conformance/verdict/lane_tally.hpp"

namespace equigrad::conformance {

std::string at_step(int step, const std::string& what);  // "step 1 gradient"
std::string where_of(const Site& site);                  // "step 1 gradient fc.weight"

struct Lanes {
  bool with_other_rules = false;  // what differs is judged by the other rules too
  LaneTally exact = {}, bounded = {};
  FirstDifference first = {};
  oracle::OtherRules other_rules = {};
  std::map<std::string, int64_t> compared = {};  // elements by kind: loss, gradient, master, ...

  // In the exact lane; whether it held.
  bool compare(const Site& site, const at::Tensor& of_engine, const at::Tensor& of_twin);
};

}  // namespace equigrad::conformance
