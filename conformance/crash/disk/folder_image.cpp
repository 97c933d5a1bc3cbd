#include "conformance/crash/disk/folder_image.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

[[noreturn]] void fail(const std::string& did, const std::string& path) {
  throw Error("crash.folder", "expected to " + did + " " + path + ", got: " + std::strerror(errno) +
                                  ". Look at the room in /dev/shm, or set TMPDIR.");
}

// With what is below it, folders before what they have.
void walk(const std::string& folder, const std::string& below, FolderImage& image) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir((folder + "/" + below).c_str()), closedir);
  if (!open) fail("read", folder + "/" + below);
  while (const dirent* entry = readdir(open.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string path = below.empty() ? name : below + "/" + name;
    struct stat status = {};
    if (lstat((folder + "/" + path).c_str(), &status) != 0) fail("look at", folder + "/" + path);
    if (S_ISDIR(status.st_mode)) {
      image.directories.insert(path);
      walk(folder, path, image);
    } else {
      image.files[path] = std::to_string(status.st_size);
    }
  }
}

void make(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail("make", folder);
}

}  // namespace

std::string read_bytes(const std::string& file) {
  const int number = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (number < 0) fail("read", file);
  std::string bytes;
  char some[65536];
  ssize_t got = 0;
  while ((got = read(number, some, sizeof some)) > 0)
    bytes.append(some, static_cast<std::size_t>(got));
  close(number);
  if (got < 0) fail("read", file);
  return bytes;
}

void write_bytes(const std::string& file, const std::string& bytes) {
  const int number = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (number < 0) fail("write", file);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = write(number, bytes.data() + done, bytes.size() - done);
    if (wrote < 0) {
      close(number);
      fail("write", file);
    }
    done += static_cast<std::size_t>(wrote);
  }
  close(number);
}

FolderImage read_folder(const std::string& folder) {
  FolderImage image;
  walk(folder, "", image);
  for (auto& [path, bytes] : image.files) bytes = read_bytes(folder + "/" + path);
  return image;
}

void write_folder(const FolderImage& image, const std::string& folder) {
  remove_folder(folder);
  make(folder);
  for (const auto& path : image.directories) make(folder + "/" + path);
  for (const auto& [path, bytes] : image.files) write_bytes(folder + "/" + path, bytes);
}

// Not std::filesystem::remove_all: LibTorch exports an older copy of it, which crashes.
void remove_folder(const std::string& folder) {
  struct stat status = {};
  if (lstat(folder.c_str(), &status) != 0) return;
  FolderImage image;
  walk(folder, "", image);
  for (const auto& [path, bytes] : image.files) unlink((folder + "/" + path).c_str());
  // A set has a folder before those in it.
  for (auto path = image.directories.rbegin(); path != image.directories.rend(); ++path)
    rmdir((folder + "/" + *path).c_str());
  if (rmdir(folder.c_str()) != 0) fail("remove", folder);
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace equigrad::conformance::crash
