#include "conformance/campaigns/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace equigrad::conformance {
namespace {

// Of the terminal that stderr is.
std::size_t columns() {
  winsize size{};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

std::string whole(double seconds) { return std::to_string(std::llround(seconds)) + " s"; }

}  // namespace

Progress::Progress(int64_t total, bool quiet, std::string noun, std::string counted)
    : total_(total),
      noun_(std::move(noun)),
      counted_(std::move(counted)),
      quiet_(quiet),
      start_(Clock::now()),
      last_(start_) {
  const char* term = std::getenv("TERM");
  terminal_ = isatty(STDERR_FILENO) == 1 && (term == nullptr || std::strcmp(term, "dumb") != 0);
}

void Progress::ends_after(double seconds) { limit_s_ = seconds; }

// Whichever comes first, the last case or the time; nothing where neither is known.
std::optional<double> Progress::left(int64_t done, double elapsed_s) const {
  std::optional<double> left_s;
  if (total_ > 0 && done > 0)
    left_s =
        (elapsed_s - before_s_) / static_cast<double>(done) * static_cast<double>(total_ - done);
  if (limit_s_ > 0) {
    const double of_time_s = std::max(0.0, limit_s_ - elapsed_s);
    left_s = left_s ? std::min(*left_s, of_time_s) : of_time_s;
  }
  return left_s;
}

void Progress::end_part(int64_t done, int64_t count) {
  done_before_ += done;
  count_before_ += count;
}

void Progress::update(int64_t done, int64_t count, const std::string& now) {
  done += done_before_;
  count += count_before_;
  const auto time = Clock::now();
  if (done == 0) before_s_ = std::chrono::duration<double>(time - start_).count();
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000);
  if (quiet_ || time - last_ < pause) return;
  last_ = time;
  const double elapsed_s = std::chrono::duration<double>(time - start_).count();
  std::string line = std::to_string(done);
  if (total_ > 0) line += "/" + std::to_string(total_);
  line += " " + noun_ + ", " + std::to_string(count) + " " + counted_ + ", " + whole(elapsed_s);
  if (const auto left_s = left(done, elapsed_s)) line += ", about " + whole(*left_s) + " left";
  if (terminal_) line = (line + "  " + now.substr(0, 40)).substr(0, columns() - 1);
  std::fprintf(stderr, "%s%s%s", terminal_ ? "\r\x1b[2K" : "", line.c_str(), terminal_ ? "" : "\n");
  std::fflush(stderr);
}

void Progress::name_wrong(const std::string& words) {
  if (quiet_ || ++named_ > kNamed + 1) return;
  clear();
  std::fprintf(stderr, "%s\n", named_ <= kNamed ? words.c_str() : "more at the end");
}

void Progress::finish() { clear(); }

void Progress::clear() const {
  if (!quiet_ && terminal_) std::fprintf(stderr, "\r\x1b[2K");
  std::fflush(stderr);
}

}  // namespace equigrad::conformance
