// RankAnswer: parts of what a rank answers that are the same for every program it runs.
//
// Invariants: rows are arrays, so that an answer is one line of JSON.
// Shapes/Units: elements and bytes.
// Errors: none of its own.
// Depends on: engine.hpp, oracle/underflow.hpp, nlohmann-json.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "conformance/oracle/underflow.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance {

// [name, begin, end, numel] of every trainable parameter that is not empty: the controller proves
// that the ranks' shards cover each of them once (cover_problem, judge.hpp). `numels` is the
// model's own list: a parameter that the engine does not show is a gap.
nlohmann::json cover_rows(const std::map<std::string, int64_t>& numels, const Engine& engine);

// [category, bytes, peak bytes], and "total".
nlohmann::json memory_rows(const Engine& engine);

// {"numel", "zero", "subnormal", "overflow", "scale", "lossless"} of what a loss scale loses.
nlohmann::json underflow_row(const oracle::UnderflowLedger& ledger);

}  // namespace equigrad::conformance
