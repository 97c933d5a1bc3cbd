// InterruptedStorage: a storage in which something happens in the place of one operation, or of all
// from one on: an error, the death of the process. Of what was to be appended half is written.
//
// Invariants: operations are counted from 0, each call of a storage or of a file of it one, but
// lock(). What happens does not come back, or the operation is not done.
// Units: operations.
// Errors: those of the storage behind it, and what `happens` throws.
// Depends on: forwarding_storage.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "conformance/crash/disk/forwarding_storage.hpp"

namespace equigrad::conformance::crash {

struct Interruption {
  std::int64_t at = -1;  // -1: never
  bool stays = false;    // what is to be written later fails as well: a disk that is full
  std::function<void(const std::string& did, const std::string& path)> happens;
};

class InterruptedStorage : public ForwardingStorage {
 public:
  InterruptedStorage(std::shared_ptr<Storage> storage, Interruption interruption);

  void make_directories(const Path& directory) override;
  std::unique_ptr<OutputFile> create(const Path& file) override;
  void rename(const Path& from, const Path& to) override;
  void sync_directory(const Path& directory) override;
  void remove(const Path& file) override;

  std::int64_t operations() const { return operations_; }
  // Counts an operation; if it is the one, `half` is done and then what happens. `writes`: it needs
  // room on the disk.
  void meet(const std::string& did, const std::string& path, bool writes,
            const std::function<void()>& half = {});

 private:
  Interruption interruption_;
  std::int64_t operations_ = 0;
};

// What a disk says, in the words of checkpoint::disk().
[[noreturn]] void refuse(int error, const std::string& did, const std::string& path);

}  // namespace equigrad::conformance::crash
