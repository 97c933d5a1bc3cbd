#include "engine/layout/bucket_plan.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "engine/error.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::layout {
namespace {

constexpr std::int64_t kSmallNumel = std::int64_t{1} << 20;
constexpr std::int64_t kParts = 8;

}  // namespace

std::int64_t bucket_size(const ParameterTable& table, std::int64_t limit_numel, bool leave_full) {
  if (!leave_full) return limit_numel;
  std::int64_t numel = 0;
  for (const Entry& entry : table.entries())
    if (entry.trainable) numel += entry.numel;
  return std::min(limit_numel, std::max(kSmallNumel, (numel + kParts - 1) / kParts));
}

BucketPlan::BucketPlan(const ParameterTable& table, int shards, std::int64_t bucket_size_numel)
    : shards_(shards), location_by_parameter_(table.size()) {
  if (shards < 1)
    throw Error("layout.bucket_plan", "expected at least 1 shard, got " + std::to_string(shards) +
                                          ". Give 1 at stage 0, the number of ranks at 1-3.");
  if (bucket_size_numel < 1)
    throw Error("layout.bucket_plan", "expected a bucket size of at least 1 element, got " +
                                          std::to_string(bucket_size_numel) +
                                          ". Raise zero_optimization.reduce_bucket_size.");
  struct Open {
    std::optional<std::size_t> bucket;
    std::int64_t filled_numel = 0;  // without padding
  };
  std::array<Open, 2> open;  // by lower_precision
  for (std::size_t parameter = table.size(); parameter-- > 0;) {
    const Entry& entry = table[parameter];
    if (!entry.trainable || entry.numel == 0) continue;
    Open& at = open[entry.lower_precision ? 1 : 0];
    // Written as a difference so that it cannot overflow.
    if (!at.bucket || entry.numel > bucket_size_numel - at.filled_numel) {
      at = {buckets_.size(), 0};
      buckets_.push_back({{}, 0, 0, entry.lower_precision});
    }
    Bucket& bucket = buckets_[*at.bucket];
    const std::int64_t columns = Partition(entry.numel, shards).shard_numel();
    location_by_parameter_[parameter] = {*at.bucket, bucket.slots.size()};
    bucket.slots.push_back({parameter, entry.numel, columns, bucket.shard_numel});
    bucket.shard_numel += columns;
    at.filled_numel += entry.numel;
  }
  for (Bucket& bucket : buckets_) {
    bucket.offset = shard_numel_;
    shard_numel_ += bucket.shard_numel;
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
