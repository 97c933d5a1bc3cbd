// ScratchFolder: a folder for a while, in memory where possible.
//
// Invariants: nobody else can read it; it is gone, with all that is in it, when this is.
// Units: none.
// Errors: equigrad::Error if no place is writable; removing throws nothing.
// Depends on: folder_image, conformance/ranks (sources only).
#pragma once

#include <string>

namespace equigrad::conformance::crash {

class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace equigrad::conformance::crash
