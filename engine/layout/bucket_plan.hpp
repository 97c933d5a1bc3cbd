// BucketPlan: which parameters are sent together, and where each lies in its bucket.
//
// Trainable, non-empty parameters in reverse registration order (the order in which a backward pass
// finishes them) are cut into buckets of at most `bucket_size_numel` elements; a larger one is sent
// alone, and so does one of kAloneNumel elements: its gradient can be sent from where it lies. A
// bucket comes where its last parameter does. Ranks agree once for a group of buckets (each time
// the earlier one waits for the later): it has at most `bucket_size_numel` elements too, and an
// eighth of what is trained, which is taken for 2^20 if it is less, for 2^22 if it is more; or it
// is one bucket. A bucket's buffer has shape [shards, shard_numel]: row r is what rank r owns, and
// a parameter has the same columns in every row.
//
//   two parameters of 5 and 3 elements, 2 shards:   row 0:  a0 a1 a2 | b0 b1
//                                                   row 1:  a3 a4  . | b2  .     (. = padding)
//
// Parameters that are sent in a lower precision have buckets of their own.
//
// A rank's shards of all buckets, end to end, are its flat shard space [plan.shard_numel()].
//
// Invariants: every trainable, non-empty parameter has exactly one slot; slots do not overlap and
// leave no column free; no bucket is empty; the grouping does not depend on the number of shards.
// Units: every integer counts elements (numel, offset) or is an index. The limit counts a
// parameter's own elements, without padding.
// Errors: equigrad::Error for a bucket size below 1 or fewer than one shard.
// Depends on: engine/layout/parameter_table.hpp, engine/layout/partition.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layout/parameter_table.hpp"

namespace equigrad::layout {

struct Slot {
  std::size_t parameter = 0;  // index into the table
  std::int64_t numel = 0;
  std::int64_t shard_numel = 0;
  std::int64_t offset = 0;  // first column inside the bucket's row
  bool operator==(const Slot&) const = default;
};

struct Bucket {
  std::vector<Slot> slots;
  std::int64_t shard_numel = 0;  // columns of the row, padding included
  std::int64_t offset = 0;       // of this bucket inside a rank's flat shard space
  std::size_t group = 0;         // buckets in a row that leave together
  bool lower_precision = false;
  bool operator==(const Bucket&) const = default;
};

struct SlotLocation {
  std::size_t bucket = 0;
  std::size_t slot = 0;
  bool operator==(const SlotLocation&) const = default;
};

// The size of buckets. Those that leave as soon as they are full have `limit_numel` at most, and an
// eighth of what is trained, but for small models: a group on its way, one that is announced and
// those being filled are all that is there, so larger ones would hold memory for nothing.
std::int64_t bucket_size(const ParameterTable& table, std::int64_t limit_numel, bool leave_full);

class BucketPlan {
 public:
  BucketPlan(const ParameterTable& table, int shards, std::int64_t bucket_size_numel);

  int shards() const { return shards_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // The first bucket after the group of this one.
  std::size_t end_of_group(std::size_t bucket) const;
  std::int64_t shard_numel() const { return shard_numel_; }  // of a rank's flat shard space
  // Nothing for a frozen or empty parameter.
  std::optional<SlotLocation> slot_of(std::size_t parameter) const;
  const Slot& slot(SlotLocation at) const { return buckets_.at(at.bucket).slots.at(at.slot); }

 private:
  void locate(std::int64_t group_size_numel);

  int shards_;
  std::vector<Bucket> buckets_;
  std::int64_t shard_numel_ = 0;
  std::vector<std::optional<SlotLocation>> location_by_parameter_;
};

}  // namespace equigrad::layout
