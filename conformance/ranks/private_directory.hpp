// PrivateDirectory: a folder of one pool, in memory where possible.
//
// Invariants: nobody else can read it.
// Units: none.
// Errors: equigrad::Error when no place is writable; removing never fails.
// Depends on: POSIX, engine/error.hpp.
#pragma once

#include <string>
#include <vector>

namespace equigrad::conformance::ranks {

// /dev/shm, TMPDIR if it is set, /tmp: in this order.
std::vector<std::string> private_places();
// The first of them that is writable; empty if none is.
std::string first_writable(const std::vector<std::string>& places);
std::string make_private_directory();
// With all that is in it; links are removed, not followed.
void remove_private_directory(const std::string& path);

}  // namespace equigrad::conformance::ranks
