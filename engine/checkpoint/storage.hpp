// Storage: what a save asks of a file system, one call each, so that a disk which loses, tears and
// refuses can stand in its place (conformance/crash), and what a load reads: whole files, mapped.
//
// Invariants: a file that was synced keeps its bytes; its name is kept once its directory was
// synced; rename() replaces `to` at once: whoever looks sees the one or the other. Nothing else
// survives a loss of power.
// Units: bytes.
// Errors: equigrad::Error that names the file, what was done with it and the system's words.
// Depends on: POSIX, in the source.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

namespace equigrad::checkpoint {

using Path = std::filesystem::path;

// A file that is being written; closed when it is destroyed, which syncs nothing.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void append(const void* data, std::size_t bytes) = 0;
  virtual void sync() = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;
  // With those above it; each new one's name is synced.
  virtual void make_directories(const Path& directory) = 0;
  // An error if there is one of this name.
  virtual std::unique_ptr<OutputFile> create(const Path& file) = 0;
  virtual void rename(const Path& from, const Path& to) = 0;
  virtual void sync_directory(const Path& directory) = 0;
  virtual void remove(const Path& file) = 0;  // nothing if there is none
  // Held while it lives, against other processes; an error if another holds it. Where the file
  // system knows no locks it holds nothing.
  virtual std::shared_ptr<void> lock(const Path& directory) = 0;
};

// The file system as it is.
Storage& disk();

// Writes `text` into FILE.saving, syncs, renames it to `file`, and syncs the directory: whoever
// reads finds the old text or the new one, whole.
void replace_file(Storage& storage, const Path& file, std::string_view text);

// A file's bytes, mapped. They are those of the file at any time: who writes it changes them.
class MappedFile {
 public:
  explicit MappedFile(const Path& file);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return {data_, bytes_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace equigrad::checkpoint
