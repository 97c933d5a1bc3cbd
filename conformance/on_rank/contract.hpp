// ContractRank: one contract case on one rank.
//
//   {"do": "contract", "id", "seed", "data", "fault": false, "plant": NAME}
//
// "plant" is a fault of the catalogue (faults/fault.hpp), which acts in the engines.
//
// Invariants: every rank plays the whole reference in its own process, so no file passes between
// them. The answer is {"exact": LaneTally::to_json()}, "acted" where a fault is planted, and where
// the plays differ "difference": {"order", "step", "call", "parameter", "what"} with "finding", or
// with "index", "got", "want", "ulp" of the first element that differs and "text", what explains
// it.
// Units: elements.   Errors: what the engine throws where no error is expected.
// Depends on: the two players and diagnosis/explain.hpp (source only), ranks/rank_context.hpp,
// reference/models/data.hpp by name.
#pragma once

#include <nlohmann/json.hpp>

#include "conformance/ranks/rank_context.hpp"

namespace equigrad::reference {
class Data;
}

namespace equigrad::conformance::contract {

nlohmann::json serve_contract(const nlohmann::json& request, ranks::RankContext& context,
                              const reference::Data& data);

}  // namespace equigrad::conformance::contract
