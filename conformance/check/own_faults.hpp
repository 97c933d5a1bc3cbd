// OwnFaults: faults planted into the engine of the model that is checked, before its cases: what
// the check's green is worth for this model.
//
// Invariants: a fault that could not act in the case is no evidence and is left out; a fault counts
// as caught only by a difference in the exact lane. The slots are idle.
// Units: none.
// Errors: equigrad::Error when interrupted.
// Depends on: campaigns/process_slots.hpp, check_case.hpp, reports/record.hpp.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/campaigns/process_slots.hpp"
#include "conformance/check/check_case.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

constexpr std::size_t kOwnFaults = 5;  // that act are enough
// Of the catalogue, the most telling first.
const std::vector<std::string>& own_faults();
// `ground`: the case that has them. `ask` makes a request of a kind ("twin", "case") for it.
std::vector<reports::SelfCheck> plant_own_faults(
    ProcessSlots& slots, const CheckCase& ground,
    const std::function<nlohmann::json(const char* what)>& ask);

}  // namespace equigrad::conformance
