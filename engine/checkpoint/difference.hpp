// Difference: what two checkpoints hold that is not the same, tensor by tensor and setting by
// setting, whatever ranks and stages they were saved by.
//
// Invariants: equal bits are equal, and so are +0 and -0, and any NaN and any NaN. Every piece is
// checked against its digest before it is read. What is a rank's own, its buffers and random state,
// is compared where both have this rank.
// Units: ulps of the type: numbers of that type that lie between, +1; the largest number there is
// between a NaN and a number. Of integers their distance.
// Errors: those of SavedCheckpoint.
// Depends on: saved_checkpoint.
#pragma once

#include <cstdint>
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
  bool operator==(const TensorDifference&) const = default;
};

// Those that differ, by name; of equal checkpoints none.
std::vector<TensorDifference> differences(const SavedCheckpoint& a, const SavedCheckpoint& b);

// What is no tensor: counters, hyper-parameters, the loss scale, what the client saved. The path is
// a JSON pointer, "/engine/counters/global_steps", in which parameters have their names; a value is
// JSON, or "" where there is none.
struct SettingDifference {
  std::string path;
  std::string a, b;
  bool operator==(const SettingDifference&) const = default;
};

// Those that differ, by path, but /engine/stage and /engine/mesh.
std::vector<SettingDifference> setting_differences(const Manifest& a, const Manifest& b);

}  // namespace equigrad::checkpoint
