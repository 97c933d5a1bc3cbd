// JudgeDivergences: where engine and twin first differ, from what all ranks of a case answered, or
// did not.
//
// Invariants: as verdict/divergence.hpp.
// Units: none.   Errors: nlohmann::json::exception for an answer of another form.
// Depends on: verdict/divergence.hpp, ranks/pool.hpp. No torch.
#pragma once

#include <optional>
#include <vector>

#include "conformance/ranks/pool.hpp"
#include "conformance/verdict/divergence.hpp"

namespace equigrad::conformance {

// Where every rank answered.
std::optional<FirstDivergence> first_of(const std::vector<ranks::Outcome>& outcomes);
// What the first rank was doing that ended by itself, not because another one did.
std::optional<FirstDivergence> first_failure(const std::vector<ranks::Outcome>& outcomes);

}  // namespace equigrad::conformance
