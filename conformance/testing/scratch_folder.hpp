// ScratchFolder: a folder of one test, which ranks that are forked later share, gone with it.
//
// Invariants: nothing is there before; only the process that made it takes it away.
// Errors: none; what cannot be removed stays.
// Depends on: POSIX. (Not std::filesystem::remove_all: LibTorch exports an older copy of it, which
// crashes.)
#pragma once

#include <ftw.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace equigrad::conformance {

class ScratchFolder {
 public:
  ScratchFolder() : maker_(::getpid()) {
    const bool in_memory = ::access("/dev/shm", W_OK) == 0;  // where a sync costs nothing
    path_ = std::string(in_memory ? "/dev/shm" : "/tmp") + "/equigrad-scratch-" +
            std::to_string(maker_) + "-" + std::to_string(next()++);
    remove();
  }
  ~ScratchFolder() {
    if (::getpid() == maker_) remove();
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  static int& next() {
    static int number = 0;
    return number;
  }
  void remove() const {
    ::nftw(
        path_.c_str(),
        [](const char* path, const struct stat*, int, struct FTW*) {
          std::remove(path);
          return 0;
        },
        16, FTW_DEPTH | FTW_PHYS);
  }

  pid_t maker_;
  std::string path_;
};

}  // namespace equigrad::conformance
