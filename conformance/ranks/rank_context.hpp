// RankContext: what the code that runs inside a rank knows about itself and its peers.
//
// Invariants: group(n), and a group of a name, is the same communicator for the same set of rank
// processes from one request to the next; a set in which a process was replaced gets a new one.
// Shapes/Units: rank is the place in the request's rank set, 0 <= rank < world_size.
// Errors: equigrad::Error when a peer cannot be reached.
// Depends on: nlohmann-json, engine/comm/communicator.hpp by name only (no torch here).
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace equigrad::comm {
class Communicator;
}

namespace equigrad::conformance::ranks {

struct RankDevice {
  std::string name = "cpu";  // as torch has it, such as "cuda:0"
  bool is_shared = false;    // with other ranks: groups are Gloo's by way of the CPU, not NCCL's
};
// What rank `slot` of `ranks` makes its own.
using TakeDevice = RankDevice (*)(int slot, int ranks);

class RankContext {
 public:
  // `note_text` is shared with the controller, which reads it when this rank hangs or dies.
  RankContext(int slot, std::string directory, char* note_text, std::size_t note_bytes,
              RankDevice device = {});

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(members_.size()); }
  // Private to the pool, shared by all its ranks, removed with the pool; in memory where possible.
  const std::string& directory() const { return directory_; }

  // Names this set of rank processes: no other that is at work has a process of it.
  const std::string& set() const { return members_.front(); }

  // Where its tensors belong.
  const RankDevice& device() const { return device_; }

  // Gloo over the first `world` ranks of the request's set (0: all of it). Those ranks, and no
  // others, call it. Made at the first call, kept for later requests.
  std::shared_ptr<comm::Communicator> group(int world = 0);
  // The same of `size` ranks that the name tells from others, as which this one is `rank`: what
  // comm::make_mesh() asks for. "world" is group().
  std::shared_ptr<comm::Communicator> group(const std::string& name, int rank, int size);

  // What this rank is doing now, such as "step 1 micro-batch 2 backward".
  void note(const std::string& text);

  // For the loop that serves requests.
  void enter(int rank, std::vector<std::string> members, std::chrono::milliseconds timeout);
  int slot() const { return slot_; }

 private:
  std::shared_ptr<comm::Communicator> connected(const std::string& name, int rank, int size);
  std::shared_ptr<comm::Communicator> reached(const std::string& rendezvous, int rank,
                                              int size) const;

  int slot_;
  int rank_ = 0;
  std::vector<std::string> members_;  // "slot.generation" of every rank of the request's set
  std::chrono::milliseconds timeout_{0};
  std::string directory_;
  char* note_text_;
  std::size_t note_bytes_;
  RankDevice device_;
  std::map<std::string, std::shared_ptr<comm::Communicator>> groups_;
};

// One thread for every torch operation of this process.
void use_one_thread();
// Makes CUDA device slot % devices this process's, with deterministic algorithms and no TF32.
// equigrad::Error where torch sees no device.
RankDevice take_cuda_device(int slot, int ranks);

}  // namespace equigrad::conformance::ranks
