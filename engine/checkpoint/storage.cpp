#include "engine/checkpoint/storage.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

[[noreturn]] void fail(const std::string& did, const Path& path, int error) {
  std::string remedy = " Nothing that was saved before has been touched.";
  if (error == ENOSPC || error == EDQUOT) remedy = " Free space, and save again." + remedy;
  if (error == EACCES || error == EROFS || error == EPERM)
    remedy = " Choose a folder that may be written." + remedy;
  throw Error("checkpoint", "expected to " + did + " \"" + path.string() + "\", got: " +
                                std::generic_category().message(error) + "." + remedy);
}

class Descriptor {
 public:
  Descriptor(const Path& path, int flags, const std::string& did)
      : number_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (number_ < 0) fail(did, path, errno);
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

class DiskFile final : public OutputFile {
 public:
  explicit DiskFile(const Path& path)
      : path_(path), descriptor_(path, O_WRONLY | O_CREAT | O_EXCL, "create") {}

  void append(const void* data, std::size_t bytes) override {
    const auto* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const auto written = ::write(descriptor_.number(), next, std::min(bytes, kMostAtOnce));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write", path_, errno);
      next += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }
  void sync() override {
    if (::fsync(descriptor_.number()) != 0) fail("sync", path_, errno);
  }

 private:
  static constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // Linux writes 2 GiB at most
  Path path_;
  Descriptor descriptor_;
};

class Disk final : public Storage {
 public:
  void make_directories(const Path& directory) override {
    std::error_code error;
    if (directory.empty() || std::filesystem::is_directory(directory, error)) return;
    const auto parent = directory.parent_path();
    if (parent != directory) make_directories(parent);
    if (::mkdir(directory.c_str(), 0777) != 0) {
      const int number = errno;
      if (number == EEXIST && std::filesystem::is_directory(directory, error)) return;
      fail("make the folder", directory, number);
    }
    sync_directory(parent);
  }
  std::unique_ptr<OutputFile> create(const Path& file) override {
    return std::make_unique<DiskFile>(file);
  }
  void rename(const Path& from, const Path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      fail("rename \"" + from.string() + "\" to", to, errno);
  }
  void sync_directory(const Path& directory) override {
    const Path path = directory.empty() ? Path(".") : directory;
    const Descriptor descriptor(path, O_RDONLY | O_DIRECTORY, "open the folder");
    // Some file systems of a network sync names by themselves, and say that they cannot.
    if (::fsync(descriptor.number()) != 0 && errno != EINVAL) fail("sync the folder", path, errno);
  }
  void remove(const Path& file) override {
    if (::unlink(file.c_str()) != 0 && errno != ENOENT) fail("remove", file, errno);
  }
  std::shared_ptr<void> lock(const Path& directory) override {
    auto held = std::make_shared<Descriptor>(directory, O_RDONLY | O_DIRECTORY, "open the folder");
    if (::flock(held->number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw Error("checkpoint", "expected no other job that saves to \"" + directory.string() +
                                    "\", got one that does now. Give each job a tag or a folder "
                                    "of its own.");
    }
    return held;
  }
};

}  // namespace

Storage& disk() {
  static Disk all;
  return all;
}

void replace_file(Storage& storage, const Path& file, std::string_view text) {
  Path beside = file;
  beside += ".saving";
  storage.remove(beside);  // of a save that did not end
  try {
    const auto output = storage.create(beside);
    output->append(text.data(), text.size());
    output->sync();
    storage.rename(beside, file);
  } catch (...) {
    try {
      storage.remove(beside);
    } catch (const Error&) {
      // What it could not write is on its way to the caller.
    }
    throw;
  }
  storage.sync_directory(file.parent_path());
}

MappedFile::MappedFile(const Path& file) {
  const Descriptor descriptor(file, O_RDONLY, "open");
  struct stat status = {};
  if (::fstat(descriptor.number(), &status) != 0) fail("look at", file, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error("checkpoint", "expected a file at \"" + file.string() +
                                  "\", got something else. Name the folder of a checkpoint.");
  }
  bytes_ = static_cast<std::size_t>(status.st_size);
  if (bytes_ == 0) return;
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, descriptor.number(), 0);
  if (mapped == MAP_FAILED) fail("map", file, errno);
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace equigrad::checkpoint
