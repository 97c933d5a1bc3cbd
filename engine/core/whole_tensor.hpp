// Whole tensor: where this rank's part of a parameter lies in the whole one that a checkpoint
// holds, and which elements of it are this rank's to keep and to write.
//
//   a parameter of which every rank has all:   kept by the ranks of its shards, written by one each
//   a part of one that a tensor group splits:  likewise, by the ranks that have this part
//
// Invariants: of every parameter's elements each is written by one rank of the mesh.
// Shapes: ranges are flat elements of what this rank has; stretches name them in the whole.
// Errors: none of its own.
// Depends on: engine/core/training_engine.hpp, checkpoint/cut, layout/partition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/checkpoint/cut.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::core {

struct Parts;

struct WholeTensor {
  std::vector<int64_t> shape;
  std::optional<checkpoint::Cut> cut;  // nothing: this rank has all of it
  int64_t part = 0;                    // of the cut, this rank's
};
WholeTensor whole_tensor(const Parts& parts, std::size_t parameter);

// Those of `range`, a rank's own flat elements, in their order.
std::vector<checkpoint::Stretch> stretches(const WholeTensor& whole, const layout::Range& range);

// Elements of a trained parameter that are this rank's to keep, and where they begin in a flat
// tensor over its shard space.
struct OwnedPart {
  layout::Range range;
  int64_t begin = 0;
};
OwnedPart kept_part(const Parts& parts, std::size_t parameter);
// Those that are this rank's to write: each element has one rank, at every stage.
OwnedPart written_part(const Parts& parts, std::size_t parameter);

}  // namespace equigrad::core
