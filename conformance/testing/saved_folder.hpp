// SavedFolder: a checkpoint on the disk for tests, of tensors that are listed, as ranks of an
// engine write it: each an equal part of every tensor, but what is a rank's own. Of one that is
// cut, rank r has some of part r % parts.
//
//   save_folder(directory, "step7",
//               {saved_tensor<float>("master/w", ElementType::F32, {2}, {1, 2})},
//               {.world_size = 2, .engine = engine_of({{"w"}})});
//
// Invariants: DIRECTORY/latest names the tag.
// Units: none.   Errors: those of engine/checkpoint.
// Depends on: engine/checkpoint. No torch.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/checkpoint/rank_writer.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"

namespace equigrad::conformance {

struct SavedTensor {
  std::string name;
  checkpoint::ElementType type = checkpoint::ElementType::F32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
  std::optional<checkpoint::Cut> cut = {};
};

template <class T>
SavedTensor saved_tensor(std::string name, checkpoint::ElementType type,
                         std::vector<std::int64_t> shape, const std::vector<T>& values) {
  SavedTensor tensor{std::move(name), type, std::move(shape), {}};
  tensor.bytes.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

struct SavedParameter {
  std::string name;
  std::vector<std::string> aliases = {};
  bool trainable = true;
};

inline nlohmann::json engine_of(const std::vector<SavedParameter>& parameters,
                                const std::string& param_type = "BF16") {
  nlohmann::json engine = {{"stage", 3},
                           {"param_type", param_type},
                           {"master_type", "F32"},
                           {"optimizer", "AdamW"},
                           {"counters", {{"global_steps", 7}, {"micro_steps", 14}}},
                           {"loss_scale", {{"scale", 65536.0}, {"good_steps", 3}}},
                           {"schedule", nullptr},
                           {"parameters", nlohmann::json::array()}};
  for (const auto& one : parameters)
    engine["parameters"].push_back({{"name", one.name},
                                    {"aliases", one.aliases},
                                    {"trainable", one.trainable},
                                    {"steps", 7},
                                    {"group", 0}});
  return engine;
}

struct SavedFolder {
  int world_size = 1;
  nlohmann::json engine = nlohmann::json::object();
  nlohmann::json client_state = nullptr;
  std::string id = "0123456789abcdef";
};

// The rank in front of a name, "rank3/buffer/mean", or -1.
inline int rank_in(const std::string& name) {
  const auto end = name.find_first_not_of("0123456789", 4);
  const bool has_rank =
      name.starts_with("rank") && end > 4 && end < name.size() && name[end] == '/';
  return has_rank ? std::stoi(name.substr(4, end - 4)) : -1;
}

// The part of `tensor` that a rank writes, with an end of -1 if it is another rank's.
inline checkpoint::PieceHeader piece_of(const SavedTensor& tensor, int rank, int world_size) {
  const std::int64_t numel = checkpoint::numel_of(tensor.shape);
  checkpoint::PieceHeader piece{tensor.name, tensor.type, tensor.shape, 0, numel, tensor.cut};
  const int owner = rank_in(tensor.name);
  if (tensor.cut) {
    const auto parts = tensor.cut->parts, place = rank / parts, places = world_size / parts;
    piece.part = rank % parts;
    piece.begin = numel / parts * place / places;
    piece.end = numel / parts * (place + 1) / places;
  } else if (owner < 0) {
    piece.begin = numel * rank / world_size;
    piece.end = numel * (rank + 1) / world_size;
  } else if (owner != rank) {
    piece.end = -1;
  }
  return piece;
}

// A part's bytes, by a walk over the whole in its order.
inline std::vector<std::byte> bytes_of_part(const SavedTensor& tensor, std::int64_t part) {
  if (!tensor.cut) return tensor.bytes;
  std::int64_t inner = checkpoint::element_bytes(tensor.type);
  for (auto i = tensor.shape.size() - 1; i > static_cast<std::size_t>(tensor.cut->dimension); --i)
    inner *= tensor.shape[i];
  std::vector<std::byte> bytes;
  auto at = tensor.bytes.begin();
  while (at != tensor.bytes.end())
    for (const auto segment : tensor.cut->segments)
      for (std::int64_t of = 0; of < tensor.cut->parts; ++of) {
        const auto end = at + segment / tensor.cut->parts * inner;
        if (of == part) bytes.insert(bytes.end(), at, end);
        at = end;
      }
  return bytes;
}

inline void save_folder(const checkpoint::Path& directory, const std::string& tag,
                        const std::vector<SavedTensor>& tensors, const SavedFolder& about) {
  using namespace checkpoint;
  const Path folder = directory / tag;
  disk().make_directories(folder);
  std::vector<RankFile> files;
  for (int rank = 0; rank < about.world_size; ++rank) {
    std::vector<PieceHeader> pieces;
    std::vector<const SavedTensor*> from;
    for (const SavedTensor& tensor : tensors) {
      auto piece = piece_of(tensor, rank, about.world_size);
      if (piece.end < 0) continue;
      pieces.push_back(std::move(piece));
      from.push_back(&tensor);
    }
    RankWriter writer(disk(), folder / rank_file_name(rank, about.world_size, about.id), pieces);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto width = element_bytes(pieces[i].type);
      const auto bytes = bytes_of_part(*from[i], pieces[i].part);
      writer.write(bytes.data() + pieces[i].begin * width,
                   static_cast<std::size_t>((pieces[i].end - pieces[i].begin) * width));
    }
    files.push_back(writer.finish());
  }
  Manifest manifest{about.id, about.world_size, about.engine, about.client_state, {}, {}};
  merge(manifest, files);
  replace_file(disk(), folder / kManifestName, write_manifest(manifest));
  replace_file(disk(), directory / kLatestName, write_latest(tag));
}

// Where the element of a tensor lies: a file, and its byte there.
struct Place {
  checkpoint::Path file;
  std::int64_t at_byte = 0;
};
inline Place place_of(const checkpoint::SavedCheckpoint& saved, const std::string& tensor,
                      std::int64_t element) {
  const auto& entry = saved.entry(tensor);
  for (const auto& piece : entry.pieces)
    if (piece.begin <= element && element < piece.end) {
      const auto& file = saved.manifest().files[piece.file];
      return {saved.folder() / file.name,
              file.header_bytes + piece.offset_bytes +
                  (element - piece.begin) * checkpoint::element_bytes(entry.type)};
    }
  throw std::runtime_error(tensor + " has no such element");
}

// Turns a bit of a file over.
inline void damage(const Place& place) {
  const auto& [file, at_byte] = place;
  auto* stream = std::fopen(file.c_str(), "r+b");
  if (stream == nullptr) throw std::runtime_error("no file " + file.string());
  std::fseek(stream, static_cast<long>(at_byte), SEEK_SET);
  const int byte = std::fgetc(stream);
  std::fseek(stream, static_cast<long>(at_byte), SEEK_SET);
  std::fputc(byte ^ 1, stream);
  std::fclose(stream);
}

}  // namespace equigrad::conformance
