// Roll call: after a collective failed, the ranks that have not noticed.
//
// A rank whose collective fails says so through the store by which the ranks met. Who says nothing
// has ended on another machine, cannot be reached, or hangs.
//
// Invariants: it is asked once a failure, and ends after `patience` even where the store does not
// answer, as on a host that has lost its way to rank 0's.
// Units: ranks count from 0.
// Errors: none.
// Depends on: the C++ standard library.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace equigrad::comm {

// Where all ranks write and read. A call may throw, or never return; it is used from any thread.
struct Board {
  std::function<void(const std::string& key)> write;
  std::function<bool(const std::string& key)> has;
};

class RollCall {
 public:
  RollCall() = default;  // asks nobody
  RollCall(Board board, int rank, int world_size, std::chrono::milliseconds patience);

  // The ranks without a word; nothing: the store has not answered.
  std::optional<std::vector<int>> silent() const;
  explicit operator bool() const { return board_.write != nullptr; }

 private:
  Board board_;
  int rank_ = 0;
  int world_size_ = 0;
  std::chrono::milliseconds patience_{};
};

}  // namespace equigrad::comm
