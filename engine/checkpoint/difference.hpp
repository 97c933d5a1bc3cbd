// Difference: what two checkpoints hold that is not the same, tensor by tensor, whatever ranks and
// stages they were saved by.
//
// Invariants: equal bits are equal, and so are +0 and -0, and any NaN and any NaN.
// Units: ulps of the type: numbers of that type that lie between, +1.
// Errors: those of SavedCheckpoint.
// Depends on: saved_checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/saved_checkpoint.hpp"

namespace equigrad::checkpoint {

struct TensorDifference {
  std::string name;
  std::string what;        // "only in A", "shape [3] and [4]", or "" where values are compared
  std::int64_t numel = 0;  // elements compared
  std::int64_t differ_numel = 0;
  std::uint64_t largest_ulps = 0;
  std::int64_t first = -1;  // the first flat element that differs
};

// Those that differ, by name; of equal checkpoints none.
std::vector<TensorDifference> differences(const SavedCheckpoint& a, const SavedCheckpoint& b);

}  // namespace equigrad::checkpoint
