// GeneratedOptions of `equigrad run`: how many generated cases, and where their failures go.
//
// Invariants: nothing is generated behind a part of a run unless it was asked for.
// Units: none.   Errors: none.   Depends on: cli.hpp, campaigns/generated_runs.hpp. No torch.
#pragma once

#include <optional>

#include "conformance/campaigns/generated_runs.hpp"
#include "conformance/cli/cli.hpp"

namespace equigrad::conformance::cli {

// Nothing: no generated cases.
std::optional<GeneratedOptions> generated_options(const RunCommand& command, bool is_whole_run);

}  // namespace equigrad::conformance::cli
