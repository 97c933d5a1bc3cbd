#include "conformance/contract/players/turns.hpp"

#include <ATen/Parallel.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace equigrad::conformance::contract {

void Turns::run(const std::function<void(int)>& play) {
  turn_ = 0;
  failure_ = nullptr;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks_; ++rank)
    threads.emplace_back([this, rank, &play] {
      try {
        at::init_num_threads();  // oneDNN asks OpenMP, whose setting is each thread's own
        wait_for(rank);
        play(rank);
        arrive(rank, "the end", nullptr);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        changed_.notify_all();
      }
    });
  for (auto& thread : threads) thread.join();
  if (failure_) std::rethrow_exception(failure_);
}

void Turns::meet(int rank, const std::string& what, const std::function<void()>& action) {
  arrive(rank, what, action);
  wait_for(rank);
}

void Turns::wait_for(int rank) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return turn_ == rank || failure_; });
  if (failure_) throw std::runtime_error("[contract] another rank of the reference failed");
}

void Turns::arrive(int rank, const std::string& what, const std::function<void()>& action) {
  if (rank == 0) what_ = what;
  if (what != what_)
    throw std::logic_error("[contract] expected every rank at the same call, got rank 0 at " +
                           what_ + " and rank " + std::to_string(rank) + " at " + what + ".");
  if (rank + 1 == ranks_ && action) action();
  const std::lock_guard lock(mutex_);
  turn_ = (rank + 1) % ranks_;
  changed_.notify_all();
}

}  // namespace equigrad::conformance::contract
