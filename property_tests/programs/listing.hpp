// Listing: a program as C++ that can be pasted into a rank of a test.
//
//   ranks::run_ranks(world, [](RankContext& context) { <the listing> })
//
// Invariants: the listing makes the calls that EnginePlayer makes, in the same order, and has a
// text for each misuse that EnginePlayer has a call for.
// Units: none.   Errors: std::out_of_range for a misuse without a text.
// Depends on: nlohmann-json. No torch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace equigrad::property_tests::programs {

using nlohmann::json;

// One call.
std::string text_of(const json& call);
// The whole program.
std::string listing(const json& setting, const json& config, const json& calls);

}  // namespace equigrad::property_tests::programs
