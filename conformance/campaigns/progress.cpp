#include "conformance/campaigns/progress.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace equigrad::conformance {

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

void Progress::update(int64_t done, int64_t count, const std::string& now) {
  const auto time = Clock::now();
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000);
  if (quiet_ || time - last_ < pause) return;
  last_ = time;
  const double elapsed_s = std::chrono::duration<double>(time - start_).count();
  const double left_s =
      done == 0 ? 0 : elapsed_s / static_cast<double>(done) * static_cast<double>(total_ - done);
  std::fprintf(stderr, "%s%lld/%lld %s, %lld %s, %.0f s, about %.0f s left  %s%s",
               terminal_ ? "\r\x1b[2K" : "", static_cast<long long>(done),
               static_cast<long long>(total_), noun_.c_str(), static_cast<long long>(count),
               counted_.c_str(), elapsed_s, left_s, terminal_ ? now.substr(0, 40).c_str() : "",
               terminal_ ? "" : "\n");
  std::fflush(stderr);
}

void Progress::finish() { clear(); }

void Progress::clear() const {
  if (!quiet_ && terminal_) std::fprintf(stderr, "\r\x1b[2K");
  std::fflush(stderr);
}

}  // namespace equigrad::conformance
