// PrivateDirectory: a folder of one pool, in memory where possible.
//
// Invariants: nobody else can read it; it has no subfolders.
// Units: none.
// Errors: equigrad::Error when no place is writable; removing never fails.
// Depends on: POSIX, engine/error.hpp.
#pragma once

#include <string>

namespace equigrad::conformance::ranks {

// In /dev/shm, TMPDIR or /tmp, the first that is writable.
std::string make_private_directory();
void remove_private_directory(const std::string& path);

}  // namespace equigrad::conformance::ranks
