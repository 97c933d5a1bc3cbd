// SelfCheck: proof, before a run, that the run would see a fault.
//
// Invariants: every planted fault is tried on a small case in which it can act; only a difference
// in the exact lane counts as caught, a case that ended early does not. A case that fails before
// anything is planted into it is the engine's failure, not one of the check's: no fault is planted
// there, and Run::engine_failure has the first difference. The slots are idle.
// Units: none.
// Errors: equigrad::Error when interrupted, or when a rank dies, hangs or loses its peers.
// Depends on: process_slots.hpp, faults/planted_faults.hpp, judge.hpp. No torch.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/campaigns/process_slots.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

constexpr int kSelfCheckRanks = 2;  // that a slot needs to have

// `ask` makes a request of a kind ("twin", "case") for a case's id.
using Ask = std::function<nlohmann::json(const char* what, const std::string& id)>;
// Adds to run.self_checks one by one, so that those before an error are kept.
void self_check(ProcessSlots& slots, const Ask& ask, reports::Run& run);

}  // namespace equigrad::conformance
