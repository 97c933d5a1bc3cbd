// Operation: one thing that a save did with the file system, and the log of all ranks' operations.
//
// Ranks work side by side; what orders them is what they wait for. Of a collective call it is
// known which rank waits for which: all for all, or those that receive a broadcast for its root.
// So an operation of rank a comes before one of rank b if a had done it before it entered a call
// that b had left, and b waits for a there.
//
// Invariants: operations of a rank stand in its order; paths are relative to the log's folder, ""
// is the folder itself.
// Units: bytes; calls count from 0.
// Errors: equigrad::Error for a text that is no log.
// Depends on: nlohmann-json, in the source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace equigrad::conformance::crash {

struct Operation {
  enum class Kind { MakeDirectory, Create, Append, Sync, Rename, SyncDirectory, Remove };
  Kind kind = Kind::Create;
  std::string path;
  std::string to = {};       // Rename
  std::string bytes = {};    // Append
  std::int64_t file = -1;    // Create, Append, Sync: the number of the Create, of this rank
  bool failed = false;       // Sync: what was not yet on the disk is not there later either
  std::int64_t entered = 0;  // collective calls that this rank had entered
  std::int64_t left = 0;     // and left
};

std::string to_text(const Operation& operation);  // "append 4096 bytes to tag/manifest.json"

constexpr int kAllWait = -1;

struct Log {
  std::vector<std::vector<Operation>> by_rank;
  std::vector<int> calls;  // by call: the root of a broadcast, or kAllWait
};

// How many operations of each rank were done.
using Cut = std::vector<std::size_t>;

std::size_t operations_of(const Log& log);
// Where an operation stands: rank and number.
struct Place {
  std::size_t rank = 0;
  std::size_t number = 0;
};
// All operations in an order in which they may have been done.
std::vector<Place> in_order(const Log& log);
// The cut behind the first `count` of them.
Cut first_of(const Log& log, std::size_t count);
// Whether it holds with every operation all that come before it.
bool is_possible(const Log& log, const Cut& cut);
// One that is possible, at random.
Cut some_cut(const Log& log, std::uint64_t seed);

std::string to_text(const Cut& cut);  // "7-4-4"
Cut cut_from(const std::string& text);

// Of one rank, to be read by another process: CBOR.
std::string write_operations(const std::vector<Operation>& operations);
std::vector<Operation> read_operations(const std::string& text);

}  // namespace equigrad::conformance::crash
