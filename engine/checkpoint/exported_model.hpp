// Exported model: the weights of a checkpoint as one whole model, in safetensors files that Hugging
// Face's from_pretrained() and safetensors itself load. Made without ranks and without a device; a
// part of one tensor is held at a time.
//
//   OUT/model.safetensors                                      or, where it is larger than a file,
//   OUT/model-00001-of-00003.safetensors, ... and OUT/model.safetensors.index.json
//
// Invariants: a trained parameter is its master, rounded once, to nearest, ties to even; a frozen
// one and a buffer (rank 0's) that is floating point likewise; others keep their type. Every piece
// is checked against its digest before it is read. Every name of a tied parameter is written once,
// under its first; the others are in the metadata, each with the first. Of a file, tensors whose
// elements are larger come first, so that all are aligned. Each file gets its name when it is
// whole, the index last. Units: bytes of a file are those of its tensors. Errors: those of
// SavedCheckpoint and of storage; equigrad::Error if OUT has a model already, or the checkpoint
// lacks a parameter. Depends on: saved_checkpoint, storage, safetensors, convert (sources).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/saved_checkpoint.hpp"

namespace equigrad::checkpoint {

struct ExportOptions {
  // Nothing: parameters as the model computes, the others as they are.
  std::optional<ElementType> type = ElementType::F32;
  std::int64_t file_bytes = 5'000'000'000;  // at most, but a file has at least one tensor
  bool exclude_frozen = false;
};

// The names of the files that were written, in OUT; the index last.
std::vector<std::string> export_model(const SavedCheckpoint& saved, const Path& out,
                                      const ExportOptions& options, Storage& storage = disk());

}  // namespace equigrad::checkpoint
