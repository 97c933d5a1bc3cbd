#include "engine/comm/wait_notice.hpp"

#include <cstdio>
#include <utility>

namespace equigrad::comm {

std::chrono::seconds notice_time(int notices) {
  return std::chrono::seconds(notices == 0 ? 5 : 30 + 60 * (notices - 1));
}

WaitNotice::WaitNotice(std::string what, std::chrono::milliseconds timeout)
    : timeout_(timeout), what_(std::move(what)), thread_([this] { speak(); }) {}

WaitNotice::~WaitNotice() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void WaitNotice::wait_for(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void WaitNotice::speak() {
  const auto began = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (int notices = 0;; ++notices) {
    const auto after = notice_time(notices);
    if (ended_.wait_until(lock, began + after, [this] { return is_over_; })) return;
    if (what_.empty()) continue;
    std::fprintf(
        stderr, "equigrad: waiting for %s (%lld s of %lld s)\n", what_.c_str(),
        static_cast<long long>(after.count()),
        static_cast<long long>(std::chrono::duration_cast<std::chrono::seconds>(timeout_).count()));
  }
}

}  // namespace equigrad::comm
