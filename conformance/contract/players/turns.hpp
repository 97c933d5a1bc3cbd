// Turns: the ranks of a reference in one process, a thread each, of which one runs at a time.
//
// Invariants: ranks run in order: rank 0 up to its first meeting, then rank 1, ...; the last to
// come does what the meeting is for, and rank 0 goes on. So what the ranks share needs no lock.
// Units: ranks count from 0.
// Errors: what a rank throws ends all of them and reaches the caller of run(); std::logic_error
// for ranks that come to different meetings.
// Depends on: the C++ standard library.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>

namespace equigrad::conformance::contract {

class Turns {
 public:
  explicit Turns(int ranks) : ranks_(ranks) {}

  void run(const std::function<void(int)>& play);
  // Of the rank that runs now. Every rank comes, with the same `what`.
  void meet(int rank, const std::string& what, const std::function<void()>& action);

 private:
  void wait_for(int rank);
  void arrive(int rank, const std::string& what, const std::function<void()>& action);

  int ranks_;
  int turn_ = 0;
  std::string what_;  // the meeting that rank 0 came to
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace equigrad::conformance::contract
