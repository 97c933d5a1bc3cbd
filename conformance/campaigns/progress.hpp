// Progress: one line on stderr that says how far a run is, updated in place on a terminal and
// repeated every ten seconds elsewhere. Of several parts that follow one another it counts on.
//
// Invariants: writes nothing when quiet; leaves the line empty when done; on a terminal the line is
// shorter than it is wide, so that writing over it leaves nothing behind.
// Units: seconds.   Errors: none.   Depends on: POSIX (isatty).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace equigrad::conformance {

class Progress {
 public:
  // `total` is 0 where nobody knows it. `noun` are what is done, `counted` those of them that the
  // line counts beside.
  Progress(int64_t total, bool quiet, std::string noun = "cases", std::string counted = "failed");
  void ends_after(double seconds);  // of wall clock, from the beginning; 0: when all is done
  // Both of this part.
  void update(int64_t done, int64_t count, const std::string& now);
  void end_part(int64_t done, int64_t count);
  void clear() const;  // before a line of something else
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<double> left(int64_t done, double elapsed_s) const;

  int64_t total_, done_before_ = 0, count_before_ = 0;  // in earlier parts
  double limit_s_ = 0;
  std::string noun_, counted_;
  bool quiet_;
  bool terminal_;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace equigrad::conformance
