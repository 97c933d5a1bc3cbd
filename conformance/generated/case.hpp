// GeneratedCase on a rank: a workload's twin, and an execution of it beside the twin.
//
//   {"do": "generated_twin", "case": {...}, "path"}             writes the twin's file
//   {"do": "generated", "case": {...}, "twin", ...}             as on_rank/run.hpp
//
// Invariants: one twin serves all executions of a workload.
// Shapes: those of the workload.
// Errors: those of the reference and of the engine; differences are findings.
// Depends on: generator/workload.hpp, cases/twin.hpp, ranks/rank_context.hpp.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "conformance/cases/matrix.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/generator/workload.hpp"
#include "conformance/ranks/rank_context.hpp"

namespace equigrad::conformance {

TwinPlan plan_of(const Workload& workload);
nlohmann::json serve_generated_twin(const nlohmann::json& request, ranks::RankContext& context);
nlohmann::json serve_generated(const nlohmann::json& request, ranks::RankContext& context);

}  // namespace equigrad::conformance
