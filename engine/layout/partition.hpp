// Partition: which rank owns which elements of one flattened parameter.
//
// `numel` elements are padded to a multiple of `shards` and cut into equal slices; rank r owns the
// unpadded part of [r * shard_numel, (r + 1) * shard_numel).
//
//   numel = 10, shards = 4:   0 1 2 | 3 4 5 | 6 7 8 | 9 . .      (. = padding)
//
// Invariants: shards are disjoint, in rank order, and cover [0, numel); each is padded to the same
// length; padding is at the end only, so the last shards may be short or empty.
// Units: every integer here counts elements, never bytes.
// Errors: equigrad::Error for a negative size, fewer than one shard, a rank or element outside.
// Depends on: engine/error.hpp.
#pragma once

#include <cstdint>

namespace equigrad::layout {

// Half open: [begin, end), end >= begin.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t numel() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

class Partition {
 public:
  Partition(std::int64_t numel, int shards);

  std::int64_t numel() const { return numel_; }
  int shards() const { return shards_; }
  std::int64_t shard_numel() const { return shard_numel_; }  // ceil(numel / shards)
  std::int64_t padded_numel() const { return shard_numel_ * shards_; }
  Range range(int rank) const;
  int owner_of(std::int64_t element) const;
  bool operator==(const Partition&) const = default;

 private:
  std::int64_t numel_;
  int shards_;
  std::int64_t shard_numel_;
};

}  // namespace equigrad::layout
