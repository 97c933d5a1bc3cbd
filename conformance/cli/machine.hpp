// Machine: what the reports and the doctor say about where they ran.
//
// Invariants: a fact that cannot be read is "unknown" or 0, never an error.
// Units: bytes.   Errors: none.
// Depends on: reports/record.hpp, POSIX.
#pragma once

#include <cstdint>
#include <string>

#include "reports/record.hpp"

namespace equigrad::conformance::cli {

reports::Environment environment_here(bool on_cuda = false);
int64_t free_bytes(const std::string& directory);

// Whether stdout or stderr takes colour: --color, NO_COLOR, FORCE_COLOR, TERM, a terminal.
bool use_colour(const std::string& color, int descriptor);

}  // namespace equigrad::conformance::cli
