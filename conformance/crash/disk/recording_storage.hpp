// RecordingStorage: does what it is asked, and writes down what it did, for CrashedDisk.
//
// Invariants: what the storage behind it refused is not in the record, but for a sync that failed.
// make_directories is recorded as what it promises: each folder that was not there is made, and its
// name synced.
// Units: bytes.
// Errors: those of the storage behind it; equigrad::Error for a path outside of the folder.
// Depends on: forwarding_storage, operation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/crash/disk/forwarding_storage.hpp"
#include "conformance/crash/disk/operation.hpp"

namespace equigrad::conformance::crash {

// Collective calls that the rank has entered and left.
using Calls = std::function<std::pair<std::int64_t, std::int64_t>()>;

class RecordingStorage : public ForwardingStorage {
 public:
  RecordingStorage(std::shared_ptr<Storage> storage, std::string folder, Calls calls);

  void make_directories(const Path& directory) override;
  std::unique_ptr<OutputFile> create(const Path& file) override;
  void rename(const Path& from, const Path& to) override;
  void sync_directory(const Path& directory) override;
  void remove(const Path& file) override;

  const std::vector<Operation>& operations() const { return operations_; }
  void record(Operation operation);

 private:
  std::string inside(const Path& path) const;  // relative to the folder

  std::string folder_;
  Calls calls_;
  std::vector<Operation> operations_;
  std::int64_t files_ = 0;
};

}  // namespace equigrad::conformance::crash
