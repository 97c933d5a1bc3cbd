// Seconds since a moment, by a clock that is never set.
// Errors: none.
// Depends on: the C++ standard library.
#pragma once

#include <chrono>

namespace equigrad::conformance {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace equigrad::conformance
