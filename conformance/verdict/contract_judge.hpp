// ContractJudge: from what the ranks of a contract case answered to its verdict.
//
// Invariants: those of judge.hpp: a death, a time-out or a lost connection is never a pass nor a
// mere difference.
// Units: elements.   Errors: nlohmann::json::exception for an answer of another form.
// Depends on: judge.hpp, ranks/pool.hpp, reports/record.hpp. No torch.
#pragma once

#include <vector>

#include "conformance/ranks/pool.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

// Sets the record's verdict, lane and message.
void judge_contract(reports::Case& record, const std::vector<ranks::Outcome>& outcomes);

}  // namespace equigrad::conformance
