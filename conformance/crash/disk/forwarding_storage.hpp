// ForwardingStorage: a storage that hands everything on; others override what they watch or change.
//
// Invariants: as it stands it behaves like the one behind it.
// Units, errors: those of engine/checkpoint/storage.hpp.
// Depends on: engine/checkpoint/storage.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "engine/checkpoint/storage.hpp"

namespace equigrad::conformance::crash {

using checkpoint::OutputFile;
using checkpoint::Path;
using checkpoint::Storage;

class ForwardingFile : public OutputFile {
 public:
  explicit ForwardingFile(std::shared_ptr<OutputFile> file) : file_(std::move(file)) {}
  void append(const void* data, std::size_t bytes) override { file_->append(data, bytes); }
  void sync() override { file_->sync(); }

 protected:
  std::shared_ptr<OutputFile> file_;
};

class ForwardingStorage : public Storage {
 public:
  explicit ForwardingStorage(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}
  void make_directories(const Path& directory) override { storage_->make_directories(directory); }
  std::unique_ptr<OutputFile> create(const Path& file) override { return storage_->create(file); }
  void rename(const Path& from, const Path& to) override { storage_->rename(from, to); }
  void sync_directory(const Path& directory) override { storage_->sync_directory(directory); }
  void remove(const Path& file) override { storage_->remove(file); }
  std::shared_ptr<void> lock(const Path& directory) override { return storage_->lock(directory); }

 protected:
  std::shared_ptr<Storage> storage_;
};

// The file system, to be wrapped.
inline std::shared_ptr<Storage> real_disk() {
  return {&checkpoint::disk(), [](Storage*) {}};
}

}  // namespace equigrad::conformance::crash
