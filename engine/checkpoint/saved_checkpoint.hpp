// Saved checkpoint: a folder DIRECTORY/TAG, opened to be read. No ranks, no device, no tensor
// library.
//
//   const auto saved = SavedCheckpoint::open(directory, latest_tag(directory));
//   saved.read("master/a.weight", 0, 35, values.data());
//
// Invariants: open() reads the manifest, checks its digest, and that every file is there, as long
// as it says, with a header that has its digest. Bytes of a piece are checked against their digest
// by verify(), which reads them; read() checks nothing. Several ranks may read at once.
// Units: flat elements of a whole tensor, also of one that was saved in parts; bytes of its type.
// Errors: equigrad::Error that names the file, and the tensor: nothing there, a save that did not
// end, what has been changed since, a newer version; a tag that is no plain name.
// Depends on: manifest, storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/manifest.hpp"
#include "engine/checkpoint/storage.hpp"

namespace equigrad::checkpoint {

// Throws for a tag that is empty, has a separator, or is "." or "..".
void check_tag(std::string_view tag, const std::string& where);

// The text of DIRECTORY/latest: the tag, and a second line, "xxh3_128 " and the tag's digest, which
// a file that was written by hand lacks.
std::string write_latest(std::string_view tag);
std::string read_latest(std::string_view text, const std::string& where);
// The tag that DIRECTORY/latest names.
std::string latest_tag(const Path& directory);
std::optional<std::string> newest_tag(const Path& directory);  // nothing where no file names one

class SavedCheckpoint {
 public:
  static SavedCheckpoint open(const Path& directory, const std::string& tag);

  const Path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  Digest digest() const { return digest_; }  // of the manifest's text
  bool has(std::string_view tensor) const { return manifest_.find(tensor) != nullptr; }
  const TensorEntry& entry(std::string_view tensor) const;  // an error if there is none

  // Of the pieces that hold any of elements [begin, end), or of the stretches'.
  void verify(std::string_view tensor, std::int64_t begin, std::int64_t end) const;
  void verify(std::string_view tensor, const std::vector<Stretch>& stretches) const;
  void verify(const TensorEntry& entry, const Piece& piece) const;
  void verify_all() const;
  void read(std::string_view tensor, std::int64_t begin, std::int64_t end, void* into) const;

 private:
  SavedCheckpoint() = default;
  const std::byte* at(const Piece& piece) const;

  Path folder_;
  Manifest manifest_;
  Digest digest_;
  std::vector<MappedFile> files_;
};

}  // namespace equigrad::checkpoint
