// Progress: one line on stderr that says how far a run is, updated in place on a terminal and
// repeated every ten seconds elsewhere.
//
// Invariants: writes nothing when quiet; leaves the line empty when done.
// Units: seconds.   Errors: none.   Depends on: POSIX (isatty).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace equigrad::conformance {

class Progress {
 public:
  // `noun` are what is done, `counted` those of them that the line counts beside.
  Progress(int64_t total, bool quiet, std::string noun = "cases", std::string counted = "failed");
  void update(int64_t done, int64_t count, const std::string& now);
  void clear() const;  // before a line of something else
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  int64_t total_;
  std::string noun_, counted_;
  bool quiet_;
  bool terminal_;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace equigrad::conformance
