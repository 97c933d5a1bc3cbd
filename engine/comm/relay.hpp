// Relay: an all-gather in ceil(log2 W) messages a rank instead of W - 1, of as many bytes.
//
//   round k   rank r sends what it has of ranks r, r + 1, .. (mod W), 2^k of them or all that are
//             missing, to rank r - 2^k, and receives as much from rank r + 2^k
//
// What others said is passed on, so a thread does it: a rank that has said something and goes on
// with its own work holds nobody up.
//
// Invariants: gathers are carried out one after the other, in the order in which they were begun,
// which is the same on every rank; they take the tags from first_tag on, one a round, which nobody
// else uses. The communicator outlives this, which ends when all that was begun has been passed on.
// Shapes: [n] -> [W * n], contiguous, on the CPU.
// Errors: those of the communicator, from wait(); then no later gather begins, and each says the
// same.
// Depends on: comm/communicator.
// Paper: Bruck, Ho, Kipnis, Upfal, Weathersby, Efficient algorithms for all-to-all communications
// in multiport message-passing systems, IEEE Trans. Parallel Distrib. Syst. 8, 1997.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/comm/communicator.hpp"

namespace equigrad::comm {

class Relay {
 public:
  // Up to so many ranks all-gathers are direct: as many threads fewer, and few messages anyway.
  static constexpr int kDirectRanks = 8;
  static constexpr int kMostRounds = 31;
  // The last tags that there are: of words, of small all-gathers, and what comes behind them.
  static constexpr int kWordsTag = 0x7fffff00;
  static constexpr int kSmallTag = kWordsTag + kMostRounds;
  static constexpr int kLastTag = kSmallTag + kMostRounds;
  // What takes no longer to send than a message takes to begin: 20 us at 3 GB/s.
  static constexpr int64_t kSmallBytes = int64_t{1} << 16;

  Relay(Communicator& communicator, int first_tag);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input);

 private:
  struct Gather;
  class Waiting;
  void run();
  void carry_out(const Gather& gather) const;

  Communicator& communicator_;
  int first_tag_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Gather>> begun_;
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the others
};

// ceil(log2(world_size))
int relay_rounds(int world_size);

}  // namespace equigrad::comm
