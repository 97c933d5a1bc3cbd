#include "engine/layout/bucket_plan.hpp"

#include <string>

#include "engine/error.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::layout {

BucketPlan::BucketPlan(const ParameterTable& table, int shards, std::int64_t bucket_size_numel)
    : shards_(shards), location_by_parameter_(table.size()) {
  if (shards < 1)
    throw Error("layout.bucket_plan", "expected at least 1 shard, got " + std::to_string(shards) +
                                          ". Give 1 at stage 0, the number of ranks at 1-3.");
  if (bucket_size_numel < 1)
    throw Error("layout.bucket_plan", "expected a bucket size of at least 1 element, got " +
                                          std::to_string(bucket_size_numel) +
                                          ". Raise zero_optimization.reduce_bucket_size.");
  std::int64_t filled_numel = 0;  // of the last bucket, without padding
  for (std::size_t parameter = table.size(); parameter-- > 0;) {
    const Entry& entry = table[parameter];
    if (!entry.trainable || entry.numel == 0) continue;
    // Written as a difference so that it cannot overflow.
    if (buckets_.empty() || entry.numel > bucket_size_numel - filled_numel) {
      buckets_.push_back({{}, 0, shard_numel_});
      filled_numel = 0;
    }
    Bucket& bucket = buckets_.back();
    const std::int64_t columns = Partition(entry.numel, shards).shard_numel();
    location_by_parameter_[parameter] = {buckets_.size() - 1, bucket.slots.size()};
    bucket.slots.push_back({parameter, entry.numel, columns, bucket.shard_numel});
    bucket.shard_numel += columns;
    shard_numel_ += columns;
    filled_numel += entry.numel;
  }
}

std::optional<SlotLocation> BucketPlan::slot_of(std::size_t parameter) const {
  if (parameter >= location_by_parameter_.size())
    throw Error("layout.bucket_plan",
                "expected the index of one of " + std::to_string(location_by_parameter_.size()) +
                    " parameters, got " + std::to_string(parameter) + ". Look it up by name.");
  return location_by_parameter_[parameter];
}

}  // namespace equigrad::layout
