// Machine: what the doctor says of this machine, and what a terminal takes.
//
// Invariants: what cannot be read is 0, never an error.
// Units: bytes.   Errors: none.
// Depends on: POSIX.
#pragma once

#include <cstdint>
#include <string>

namespace equigrad::conformance::cli {

int64_t free_bytes(const std::string& directory);

// Whether stdout or stderr takes colour: --color, NO_COLOR, FORCE_COLOR, TERM, a terminal.
bool use_colour(const std::string& color, int descriptor);

}  // namespace equigrad::conformance::cli
