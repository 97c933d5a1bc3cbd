#include "engine/checkpoint/manifest.hpp"

#include <stdexcept>
#include <string>

#include "engine/error.hpp"
#include "property_tests/parsers/parsers.hpp"

namespace equigrad::property_tests {
namespace {

using checkpoint::Manifest;

// Tensors in parts came with version 2.
std::string with_digest(std::string_view rest) {
  const bool has_parts = rest.find("\"cut\"") != std::string_view::npos;
  const std::string front = std::string(R"({"schema": "equigrad.checkpoint", "version": )") +
                            (has_parts ? "2" : "1") + R"(, "xxh3_128": ")";
  const std::string text = front + std::string(32, '0') + "\"" + std::string(rest);
  const std::string digest = to_text(checkpoint::digest_of(text.data(), text.size()));
  return std::string(text).replace(front.size(), digest.size(), digest);
}

// What the header says of a manifest, found in another way than the parser's.
void check(const Manifest& manifest) {
  std::vector<std::int64_t> bytes_left;
  for (const checkpoint::FileEntry& file : manifest.files) {
    if (file.name.find('/') != std::string::npos || file.name == "..")
      throw std::logic_error("a file in another folder");
    bytes_left.push_back(file.bytes - file.header_bytes);
  }
  for (const checkpoint::TensorEntry& tensor : manifest.tensors) {
    if (manifest.find(tensor.name) != &tensor) throw std::logic_error("a tensor is not found");
    std::int64_t numel = checkpoint::numel_of(tensor.shape);
    for (const checkpoint::Piece& piece : tensor.pieces) {
      const std::int64_t bytes = (piece.end - piece.begin) * element_bytes(tensor.type);
      const checkpoint::FileEntry& file = manifest.files.at(piece.file);
      if (bytes <= 0 || piece.offset_bytes < 0 ||
          piece.offset_bytes + bytes > file.bytes - file.header_bytes)
        throw std::logic_error("a piece outside of its file");
      bytes_left.at(piece.file) -= bytes;
      numel -= piece.end - piece.begin;
    }
    if (numel != 0) throw std::logic_error("pieces that do not cover their tensor");
  }
  for (const std::int64_t left : bytes_left)
    if (left != 0) throw std::logic_error("bytes of a file that belong to nothing");
}

bool takes_whole(std::string_view text) {
  Manifest manifest;
  try {
    manifest = checkpoint::read_manifest(text, "fuzz");
  } catch (const Error&) {
    return false;
  }
  check(manifest);
  const std::string written = write_manifest(manifest);
  if (checkpoint::read_manifest(written, "fuzz") != manifest)
    throw std::logic_error("a manifest that is another one when it is read again");
  return true;
}

void try_rank_file(std::string_view text) {
  checkpoint::RankFile file;
  try {
    file = checkpoint::read_rank_file(text);
  } catch (const Error&) {
    return;
  }
  const checkpoint::RankFile again = checkpoint::read_rank_file(write_rank_file(file));
  if (again.file != file.file || again.tensors != file.tensors)
    throw std::logic_error("a rank's file that is another one when it is read again");
  Manifest manifest;
  manifest.id = "fuzz";
  try {
    merge(manifest, {file});
  } catch (const Error&) {
    return;
  }
  check(manifest);
}

}  // namespace

bool takes_manifest(std::string_view bytes) {
  try_rank_file(bytes);
  return takes_whole(bytes) || takes_whole(with_digest(bytes));
}

}  // namespace equigrad::property_tests
