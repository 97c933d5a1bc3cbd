// ContractJudge: from what the ranks of a contract case answered to its verdict.
//
// Invariants: those of judge.hpp: a death, a time-out or a lost connection is never a pass nor a
// mere difference. The message begins with the first thing that differs on any rank: the step, the
// parameter, the engine's call that gave it, what was got and wanted, and what explains it.
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
