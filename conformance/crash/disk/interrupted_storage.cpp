#include "conformance/crash/disk/interrupted_storage.hpp"

#include <system_error>

#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

class InterruptedFile final : public ForwardingFile {
 public:
  InterruptedFile(std::shared_ptr<OutputFile> file, InterruptedStorage& storage, std::string path)
      : ForwardingFile(std::move(file)), storage_(storage), path_(std::move(path)) {}

  void append(const void* data, std::size_t bytes) override {
    storage_.meet("write", path_, true, [&] { file_->append(data, bytes / 2); });
    file_->append(data, bytes);
  }
  void sync() override {
    storage_.meet("sync", path_, true);
    file_->sync();
  }

 private:
  InterruptedStorage& storage_;
  std::string path_;
};

}  // namespace

InterruptedStorage::InterruptedStorage(std::shared_ptr<Storage> storage, Interruption interruption)
    : ForwardingStorage(std::move(storage)), interruption_(std::move(interruption)) {}

void InterruptedStorage::meet(const std::string& did, const std::string& path, bool writes,
                              const std::function<void()>& half) {
  const auto number = operations_++;
  const bool is_later =
      interruption_.stays && writes && interruption_.at >= 0 && number > interruption_.at;
  if (number != interruption_.at && !is_later) return;
  if (half) half();
  interruption_.happens(did, path);
}

void InterruptedStorage::make_directories(const Path& directory) {
  meet("make the folder", directory.string(), true);
  storage_->make_directories(directory);
}

std::unique_ptr<OutputFile> InterruptedStorage::create(const Path& file) {
  meet("create", file.string(), true);
  return std::make_unique<InterruptedFile>(storage_->create(file), *this, file.string());
}

void InterruptedStorage::rename(const Path& from, const Path& to) {
  meet("rename \"" + from.string() + "\" to", to.string(), false);
  storage_->rename(from, to);
}

void InterruptedStorage::sync_directory(const Path& directory) {
  meet("sync the folder", directory.string(), false);
  storage_->sync_directory(directory);
}

void InterruptedStorage::remove(const Path& file) {
  meet("remove", file.string(), false);
  storage_->remove(file);
}

void refuse(int error, const std::string& did, const std::string& path) {
  throw Error("checkpoint", "expected to " + did + " \"" + path +
                                "\", got: " + std::generic_category().message(error) + ".");
}

}  // namespace equigrad::conformance::crash
