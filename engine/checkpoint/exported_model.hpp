// Exported model: the weights of a checkpoint as one whole model, in safetensors files that Hugging
// Face's from_pretrained() and safetensors itself load. Made without ranks and without a device; one
// tensor is held at a time.
//
//   OUT/model.safetensors                                      or, where it is larger than a file,
//   OUT/model-00001-of-00003.safetensors, ... and OUT/model.safetensors.index.json
//
// Invariants: a trained parameter is its master, rounded once, to nearest, ties to even; a frozen
// one and a buffer (rank 0's) that is floating point likewise; others keep their type. Every name
// of a tied parameter is written once, under its first; the others are in the metadata.
// Errors: those of SavedCheckpoint; equigrad::Error if there is such a file already.
// Depends on: saved_checkpoint, storage, safetensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/saved_checkpoint.hpp"

namespace equigrad::checkpoint {

struct ExportOptions {
  std::optional<ElementType> type = ElementType::F32;  // nothing: as the model computes
  std::int64_t file_bytes = std::int64_t{5} << 30;     // a file has at least one tensor
  bool exclude_frozen = false;
};

// The names of the files that were written, in OUT.
std::vector<std::string> export_model(const SavedCheckpoint& saved, const Path& out,
                                      const ExportOptions& options, Storage& storage = disk());

// `numel` elements of one floating-point type in another, each rounded once.
void convert(const void* from, ElementType from_type, void* to, ElementType to_type,
             std::int64_t numel);

}  // namespace equigrad::checkpoint
