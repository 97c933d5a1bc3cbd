// What a rank of a pool can be asked to do where generated cases are run: what on_rank/program.hpp
// has, a generated case, and its twin (generated/case.hpp).
//
// Invariants, units, errors: theirs.
// Depends on: ranks/pool.hpp. No torch in the header.
#pragma once

#include <nlohmann/json.hpp>

#include "conformance/ranks/pool.hpp"

namespace equigrad::conformance {

nlohmann::json serve_with_generated(const nlohmann::json& request, ranks::RankContext& context);

}  // namespace equigrad::conformance
