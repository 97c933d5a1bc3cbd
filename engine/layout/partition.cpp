#include "engine/layout/partition.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "engine/error.hpp"

namespace equigrad::layout {

Partition::Partition(std::int64_t numel, int shards) : numel_(numel), shards_(shards) {
  if (numel < 0)
    throw Error("layout.partition", "expected a number of elements of at least 0, got " +
                                        std::to_string(numel) + ". Give the parameter's numel.");
  if (shards < 1)
    throw Error("layout.partition", "expected at least 1 shard, got " + std::to_string(shards) +
                                        ". Give 1 at stage 0, the number of ranks at stages 1-3.");
  if (numel > std::numeric_limits<std::int64_t>::max() - shards)
    throw Error("layout.partition", "expected a padded size that fits in 64 bits, got " +
                                        std::to_string(numel) + " elements. Split the parameter.");
  shard_numel_ = (numel + shards - 1) / shards;
  EQUIGRAD_CHECK(padded_numel() >= numel && padded_numel() - numel < shards, "layout.partition",
                 "shards cover every element, with less padding than shards");
}

Range Partition::range(int rank) const {
  if (rank < 0 || rank >= shards_)
    throw Error("layout.partition", "expected a rank from 0 to " + std::to_string(shards_ - 1) +
                                        ", got " + std::to_string(rank) +
                                        ". A stage-0 partition has one shard.");
  return {std::min(rank * shard_numel_, numel_), std::min((rank + 1) * shard_numel_, numel_)};
}

int Partition::owner_of(std::int64_t element) const {
  if (element < 0 || element >= numel_)
    throw Error("layout.partition", "expected an element from 0 to " + std::to_string(numel_ - 1) +
                                        ", got " + std::to_string(element) +
                                        ". Padding has no owner.");
  return static_cast<int>(element / shard_numel_);
}

}  // namespace equigrad::layout
