#include "conformance/crash/scratch_folder.hpp"

#include "conformance/crash/disk/folder_image.hpp"
#include "conformance/ranks/private_directory.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {

ScratchFolder::ScratchFolder() : path_(ranks::make_private_directory()) {}

ScratchFolder::~ScratchFolder() {
  try {
    remove_folder(path_);
  } catch (const Error&) {  // somebody still writes there: what is left is the system's
  }
}

}  // namespace equigrad::conformance::crash
