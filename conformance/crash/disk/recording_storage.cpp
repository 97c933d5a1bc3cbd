#include "conformance/crash/disk/recording_storage.hpp"

#include <unistd.h>

#include <algorithm>

#include "conformance/crash/disk/folder_image.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

using Kind = Operation::Kind;

class RecordedFile final : public ForwardingFile {
 public:
  RecordedFile(std::shared_ptr<OutputFile> file, RecordingStorage& record, std::string path,
               std::int64_t number)
      : ForwardingFile(std::move(file)), record_(record), path_(std::move(path)), number_(number) {}

  void append(const void* data, std::size_t bytes) override {
    file_->append(data, bytes);
    record_.record({.kind = Kind::Append,
                    .path = path_,
                    .bytes = {static_cast<const char*>(data), bytes},
                    .file = number_});
  }
  void sync() override {
    Operation sync{.kind = Kind::Sync, .path = path_, .file = number_};
    try {
      file_->sync();
    } catch (const Error&) {
      sync.failed = true;
      record_.record(sync);
      throw;
    }
    record_.record(sync);
  }

 private:
  RecordingStorage& record_;
  std::string path_;
  std::int64_t number_;
};

}  // namespace

RecordingStorage::RecordingStorage(std::shared_ptr<Storage> storage, std::string folder,
                                   Calls calls)
    : ForwardingStorage(std::move(storage)), folder_(std::move(folder)), calls_(std::move(calls)) {}

std::string RecordingStorage::inside(const Path& path) const {
  const std::string text = path.string();
  if (text == folder_) return "";
  if (!text.starts_with(folder_ + "/"))
    throw Error("crash.record", "expected a path in " + folder_ + ", got " + text +
                                    ". A save writes nothing outside of its folder.");
  return text.substr(folder_.size() + 1);
}

void RecordingStorage::record(Operation operation) {
  std::tie(operation.entered, operation.left) = calls_();
  operations_.push_back(std::move(operation));
}

void RecordingStorage::make_directories(const Path& directory) {
  std::vector<std::string> missing;
  for (std::string path = inside(directory);
       !path.empty() && access((folder_ + "/" + path).c_str(), F_OK) != 0; path = folder_of(path))
    missing.push_back(path);
  storage_->make_directories(directory);
  std::reverse(missing.begin(), missing.end());
  for (const auto& path : missing) {
    record({.kind = Kind::MakeDirectory, .path = path});
    record({.kind = Kind::SyncDirectory, .path = folder_of(path)});
  }
}

std::unique_ptr<OutputFile> RecordingStorage::create(const Path& file) {
  const auto path = inside(file);
  auto created = storage_->create(file);
  record({.kind = Kind::Create, .path = path, .file = files_});
  return std::make_unique<RecordedFile>(std::move(created), *this, path, files_++);
}

void RecordingStorage::rename(const Path& from, const Path& to) {
  storage_->rename(from, to);
  record({.kind = Kind::Rename, .path = inside(from), .to = inside(to)});
}

void RecordingStorage::sync_directory(const Path& directory) {
  storage_->sync_directory(directory);
  record({.kind = Kind::SyncDirectory, .path = inside(directory)});
}

void RecordingStorage::remove(const Path& file) {
  storage_->remove(file);
  record({.kind = Kind::Remove, .path = inside(file)});
}

}  // namespace equigrad::conformance::crash
