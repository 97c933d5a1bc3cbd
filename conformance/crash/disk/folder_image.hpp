// FolderImage: a folder with all that is in it, in memory, to be compared, changed and written out.
//
// Invariants: paths are relative to the folder, "tag/latest"; what is written out is what the
// image has, and nothing else is in the folder afterwards. Links are not followed.
// Units: bytes.
// Errors: equigrad::Error that names what cannot be read or written.
// Depends on: POSIX, in the source.
#pragma once

#include <map>
#include <set>
#include <string>

namespace equigrad::conformance::crash {

struct FolderImage {
  std::set<std::string> directories;         // without the folder itself
  std::map<std::string, std::string> files;  // bytes by path
  bool operator==(const FolderImage&) const = default;
};

FolderImage read_folder(const std::string& folder);
void write_folder(const FolderImage& image, const std::string& folder);
void remove_folder(const std::string& folder);  // nothing if there is none
void write_bytes(const std::string& file, const std::string& bytes);
std::string read_bytes(const std::string& file);

std::string folder_of(const std::string& path);  // "tag" of "tag/latest", "" of "latest"
std::string name_of(const std::string& path);    // what follows

}  // namespace equigrad::conformance::crash
