// Progress: one line on stderr that says how far a run is, updated in place on a terminal and
// repeated every ten seconds elsewhere. Of several parts that follow one another it counts on. What
// goes wrong is named when it does.
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
  static constexpr int64_t kNamed = 20;
  // `total` is 0 where nobody knows it. `noun` are what is done, `counted` those of them that the
  // line counts beside.
  Progress(int64_t total, bool quiet, std::string noun = "cases", std::string counted = "failed");
  void ends_after(double seconds);  // of wall clock, from the beginning; 0: when all is done
  // Both of this part.
  void update(int64_t done, int64_t count, const std::string& now);
  void end_part(int64_t done, int64_t count);
  // What went wrong, in a line of its own as soon as it is known; the first kNamed of a run.
  void name_wrong(const std::string& words);
  void clear() const;  // before a line of something else
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<double> left(int64_t done, double elapsed_s) const;

  int64_t total_, done_before_ = 0, count_before_ = 0;  // in earlier parts
  int64_t named_ = 0;
  double limit_s_ = 0;
  double before_s_ = 0;  // until nothing was done for the last time: what precedes the first case
  std::string noun_, counted_;
  bool quiet_;
  bool terminal_;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace equigrad::conformance
