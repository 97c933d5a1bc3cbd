#include "conformance/ranks/private_directory.hpp"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "engine/error.hpp"

namespace equigrad::conformance::ranks {

std::vector<std::string> private_places() {
  const char* temporary = std::getenv("TMPDIR");
  std::vector<std::string> places = {"/dev/shm"};
  if (temporary != nullptr && *temporary != 0) places.emplace_back(temporary);
  places.emplace_back("/tmp");
  return places;
}

std::string first_writable(const std::vector<std::string>& places) {
  for (const auto& place : places)
    if (access(place.c_str(), W_OK | X_OK) == 0) return place;
  return {};
}

std::string make_private_directory() {
  for (const auto& place : private_places()) {
    std::string name = place + "/equigrad-XXXXXX";
    if (!first_writable({place}).empty() && mkdtemp(name.data()) != nullptr) return name;
  }
  throw Error("ranks.Pool",
              std::string("expected a folder for the ranks in /dev/shm, TMPDIR or /tmp, got: ") +
                  std::strerror(errno) + ". Set TMPDIR to a folder that is writable and has room.");
}

// Not std::filesystem::remove_all: LibTorch exports an older copy of it, which crashes.
void remove_private_directory(const std::string& path) {
  if (DIR* directory = opendir(path.c_str())) {
    while (const dirent* entry = readdir(directory)) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      const std::string inside = path + "/" + name;
      if (unlink(inside.c_str()) != 0) remove_private_directory(inside);
    }
    closedir(directory);
  }
  rmdir(path.c_str());
}

}  // namespace equigrad::conformance::ranks
