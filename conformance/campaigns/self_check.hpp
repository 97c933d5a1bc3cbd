// SelfCheck: proof, before a run, that the run would see a fault.
//
// Invariants: every planted fault is tried on a small case in which it can act; only a difference
// in the exact lane counts as caught, a case that ended early does not. Units: ranks 0 to
// kSelfCheckRanks - 1 of the pool are used, and must be idle. Errors: equigrad::Error when
// interrupted, or when a rank dies, hangs or loses its peers. Depends on:
// faults/planted_faults.hpp, judge.hpp, ranks/pool.hpp. No torch.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/ranks/pool.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

constexpr int kSelfCheckRanks = 2;

// `ask` makes a request of a kind ("twin", "case") for a case's id.
using Ask = std::function<nlohmann::json(const char* what, const std::string& id)>;
std::vector<reports::SelfCheck> self_check(ranks::Pool& pool, const Ask& ask);

}  // namespace equigrad::conformance
