// Wait notice: who waits long says on stderr what for, 5 s and 30 s after it began and every minute
// from then on.
//
//   equigrad: waiting for rank 1 at node0:29500 (5 s of 1800 s)
//
// Invariants: one line a time; none after its end, and none before anything is waited for.
// Units: seconds.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace equigrad::comm {

// After the beginning; `notices`: how many there were.
std::chrono::seconds notice_time(int notices);

class WaitNotice {
 public:
  WaitNotice(std::string what, std::chrono::milliseconds timeout);
  ~WaitNotice();
  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;

  // What is waited for from now on; empty: nothing that this rank speaks of.
  void wait_for(std::string what);

 private:
  void speak();

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::string what_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace equigrad::comm
