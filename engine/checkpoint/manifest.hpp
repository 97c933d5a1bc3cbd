// Manifest: manifest.json, which says what a checkpoint is: its files, and of every tensor the
// pieces, where each lies and what its digest is. A folder without it is no checkpoint, but what is
// left of a save that did not end.
//
//   {"schema": "equigrad.checkpoint", "version": 1, "xxh3_128": "...",
//    "id": "...", "world_size": 2, "engine": {...}, "client_state": ...,
//    "files": [{"name": "rank-00000-of-00002-ID.safetensors", "bytes": 8192, "header_bytes": 512,
//               "header_xxh3_128": "..."}],
//    "tensors": [{"name": "master/a.weight", "type": "F32", "shape": [7, 5],
//                 "pieces": [{"file": 0, "begin": 0, "end": 18, "offset_bytes": 0,
//                             "xxh3_128": "..."}]}]}
//
// The digest is that of the whole text, with 32 zeros in its own place.
//
// Version 2 has tensors that a tensor group saved in parts as well (cut.hpp): beside its shape,
// which is the whole's, such a tensor says how it is cut, and each piece of which part it is:
//
//   {"name": "master/b.weight", "type": "F32", "shape": [8, 5],
//    "cut": {"dimension": 0, "segments": [4, 4], "parts": 2},
//    "pieces": [{"file": 0, "part": 0, "begin": 0, "end": 20, ...}, {"file": 1, "part": 1, ...}]}
//
// A manifest without such tensors is written as version 1, which every Equigrad reads.
//
// Names: "master/P", "OPTIMIZER_STATE/P", "parameter/P" (of a frozen one), "rank3/buffer/B",
// "rank3/rng/cpu".
//
// Invariants: pieces of a tensor follow each other and cover it, those of a cut one part after
// part; none lies outside of its file, nor over another; file names are plain, without folders.
// Units: begin and end are flat elements, in the order of the shape, or of the part; offsets are
// bytes from the end of the file's header.
// Errors: equigrad::Error for a text that is not whole, of another schema, of a newer version (by
// name), or that breaks an invariant. Nothing is allocated for what it only claims.
// Depends on: cut, digest, safetensors, nlohmann-json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/cut.hpp"
#include "engine/checkpoint/digest.hpp"
#include "engine/checkpoint/safetensors.hpp"

namespace equigrad::checkpoint {

inline constexpr int kManifestVersion = 2;  // the newest that is read
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kLatestName = "latest";

struct Piece {
  std::size_t file = 0;  // of the manifest's files
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset_bytes = 0;
  Digest digest;
  std::int64_t part = 0;  // of a cut tensor
  bool operator==(const Piece&) const = default;
};

struct TensorEntry {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<std::int64_t> shape;
  std::vector<Piece> pieces;
  std::optional<Cut> cut = {};  // nothing: pieces are of the whole
  bool operator==(const TensorEntry&) const = default;
};

struct FileEntry {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;
  Digest header;
  bool operator==(const FileEntry&) const = default;
};

struct Manifest {
  std::string id;  // of this save; part of its files' names
  int world_size = 1;
  nlohmann::json engine;        // what the engine wrote of itself (engine/core/saved_engine.hpp)
  nlohmann::json client_state;  // the user's
  std::vector<FileEntry> files;
  std::vector<TensorEntry> tensors;
  // Null if there is none of this name.
  const TensorEntry* find(std::string_view name) const;
  bool operator==(const Manifest&) const = default;
};

// What one rank has written: a file, and its pieces by tensor, whose file is not yet numbered.
struct RankFile {
  FileEntry file;
  std::vector<TensorEntry> tensors;  // with one piece each
};
std::string write_rank_file(const RankFile& file);
RankFile read_rank_file(std::string_view text);
// Files in the order of ranks, tensors by name, their pieces in order.
void merge(Manifest& manifest, const std::vector<RankFile>& files);

std::string write_manifest(const Manifest& manifest);
Manifest read_manifest(std::string_view text, const std::string& where);

}  // namespace equigrad::checkpoint
