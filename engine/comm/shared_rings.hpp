// Shared rings: bytes between ranks of one machine, through memory that they share.
//
// Over loopback TCP a byte is copied into the kernel and out of it, with packets, wake-ups and a
// thread of Gloo's in between; here it is copied into a ring and out of the ring. Gloo still
// connects the ranks, and carries what is no row from one rank to another.
//
//   rank a                                     rank b's memory (a memfd, which a has mapped)
//   post(): rows are copied in as they fit --> ring of a, some MiB
//                                         <--  b's bell: "look again", a futex
//
// Progress is made by whoever waits; a thread of its own looks every kLazily for what nobody waits
// for, so that a rank that waits elsewhere keeps no other one waiting.
//
// Invariants: all ranks post the same exchanges in the same order, from one thread; each message is
// headed by its number and length, so that a call of another length is an error and no wrong bits.
// What is posted is read until it is done, whether or not it is waited for; who leaves sends first
// what it has posted. Rings exist on all ranks or on none.
// Units: bytes. A rank's memory is (W - 1) rings; pages that no message reached are not there.
// Errors: LostRank where a rank has ended or left, or another one says so; std::runtime_error for a
// time without any progress, for a call of another length, and where another rank has given up. Who
// meets one says so to the others, and all that it posts behind it fails likewise.
// Depends on: comm/peers; Linux's memfd and futex.
#pragma once

#include <ATen/core/Tensor.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/comm/peers.hpp"
#include "engine/comm/shared_segment.hpp"

namespace equigrad::comm {

class LostRank : public std::runtime_error {
 public:
  LostRank(int rank, const char* what) : std::runtime_error(what), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

// What a rank of an exchange sends to another one and receives from it.
struct Row {
  int peer;
  at::Tensor send, receive;  // contiguous, of as many bytes
};

class SharedRings {
 public:
  static constexpr int kMostRanks = 16;
  // Of all that one rank receives from: a ring has its part, and a page for what heads messages.
  static constexpr std::size_t kRingsBytes = std::size_t{4} << 20;
  // Between two looks of the thread while something is open, and while nothing is; of who waits
  // and is not rung for; for peers to take what a rank that leaves still has for them, without any
  // progress.
  static constexpr std::chrono::milliseconds kLazily{2}, kIdle{20}, kLook{50}, kFarewell{10'000};

  // What the ranks tell each other before they have rings: by key, through their store.
  struct Board {
    std::function<void(const std::string& key, const std::string& value)> set;
    std::function<std::string(const std::string& key)> get;  // waits for it
  };
  // Called by all ranks. Null, on all of them, where they are alone or many, on several machines,
  // may not map each other's memory, or EQUIGRAD_SHARED_MEMORY=0 on one of them.
  static std::shared_ptr<SharedRings> connect(const Board& board, int rank, int world_size,
                                              std::shared_ptr<const Peers> peers,
                                              std::chrono::milliseconds timeout);
  ~SharedRings();
  SharedRings(const SharedRings&) = delete;
  SharedRings& operator=(const SharedRings&) = delete;

  // Rows to and from other ranks, on their way.
  struct Exchange {
    std::vector<Row> rows;
    std::size_t open = 0;  // messages that are not through
    std::exception_ptr error;
  };
  std::shared_ptr<Exchange> post(std::vector<Row> rows);
  void wait(Exchange& exchange);

 private:
  struct Way;     // to and from one peer
  struct Helper;  // the thread
  SharedRings(std::shared_ptr<const Peers> peers, std::chrono::milliseconds timeout);
  bool map_all(const Board& board, int rank, int world_size);
  bool start_helper();
  void require_own_process() const;
  bool move();
  bool move_way(Way& way);
  void lose(Way& way, const std::exception_ptr& error);
  void give_up(const std::exception_ptr& error);
  void look_for_ended(const std::vector<int>& ended);
  void send_rest();
  std::vector<std::shared_ptr<Exchange>> take_through();
  void help();

  std::shared_ptr<const Peers> peers_;
  std::chrono::milliseconds timeout_;
  pid_t process_;
  std::vector<std::unique_ptr<Way>> ways_;
  std::unique_ptr<SharedSegment> mine_;
  // What helps may end last references to nothing: it would wait for an interpreter's lock.
  std::deque<std::shared_ptr<Exchange>> posted_;
  std::size_t open_ = 0;      // messages that are not through
  std::exception_ptr error_;  // that all fail with from now on
  std::mutex mutex_;
  std::unique_ptr<Helper> helper_;
};

}  // namespace equigrad::comm
