// Scratch: a folder for files that nobody needs afterwards.
//
// Invariants: nobody else can read it; it ends with this, and all that is in it.
// Errors: std::runtime_error when it cannot be made; removing never fails.
// Depends on: POSIX. No torch. (The wheel brings a std::filesystem::remove_all of another
// libstdc++, which crashes here.)
#pragma once

#include <ftw.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace equigrad::perf {

class Scratch {
 public:
  Scratch() {
    const char* place = std::getenv("TMPDIR");
    path_ = std::string(place != nullptr ? place : "/tmp") + "/equigrad-race-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr)
      throw std::runtime_error("[race] cannot make the folder " + path_ + ". Set TMPDIR.");
  }
  ~Scratch() {
    nftw(
        path_.c_str(),
        [](const char* path, const struct stat*, int, FTW*) { return std::remove(path); },
        /*nopenfd=*/8, FTW_DEPTH | FTW_PHYS);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace equigrad::perf
