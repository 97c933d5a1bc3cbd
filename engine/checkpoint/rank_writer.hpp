// Rank writer: one rank's file of a save, tensor after tensor, each hashed while it is written.
//
// Invariants: nothing of it counts until a manifest names it; finish() has synced it.
// Shapes: a piece is flat elements [begin, end) of a tensor of `shape`, or of a part of it.
// Errors: those of storage; equigrad::Error for tensors that come in another order or size.
// Depends on: storage, safetensors, manifest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.hpp"
#include "engine/checkpoint/storage.hpp"

namespace equigrad::checkpoint {

// One piece to come.
struct PieceHeader {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::optional<Cut> cut = {};  // nothing: of the whole
  std::int64_t part = 0;
};

std::string rank_file_name(int rank, int world_size, const std::string& id);

class RankWriter {
 public:
  // The header is written at once. Pieces are written in this order.
  RankWriter(Storage& storage, const Path& file, const std::vector<PieceHeader>& pieces);
  RankWriter(const RankWriter&) = delete;
  RankWriter& operator=(const RankWriter&) = delete;
  void write(const void* data, std::size_t bytes);  // the next piece, whole
  RankFile finish();

 private:
  std::unique_ptr<OutputFile> output_;
  RankFile written_;
  std::vector<TensorEntry>::iterator next_;
};

}  // namespace equigrad::checkpoint
