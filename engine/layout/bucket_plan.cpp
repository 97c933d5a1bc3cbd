#include "engine/layout/bucket_plan.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "engine/error.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::layout {
namespace {

constexpr std::int64_t kSmallNumel = std::int64_t{1} << 20;
constexpr std::int64_t kLargeGroupNumel = std::int64_t{1} << 22;
constexpr std::int64_t kParts = 8;

std::int64_t eighth(const ParameterTable& table) {
  std::int64_t numel = 0;
  for (const Entry& entry : table.entries())
    if (entry.trainable) numel += entry.numel;
  return std::max(kSmallNumel, (numel + kParts - 1) / kParts);
}

}  // namespace

std::int64_t bucket_size(const ParameterTable& table, std::int64_t limit_numel, bool leave_full) {
  return leave_full ? std::min(limit_numel, eighth(table)) : limit_numel;
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
    Bucket bucket;
    std::int64_t filled_numel = 0;  // without padding
  };
  std::array<Open, 2> open;  // by lower_precision
  const auto close = [this](Open& at) {
    if (!at.bucket.slots.empty()) buckets_.push_back(std::exchange(at, {}).bucket);
  };
  for (std::size_t parameter = table.size(); parameter-- > 0;) {
    const Entry& entry = table[parameter];
    if (!entry.trainable || entry.numel == 0) continue;
    Open alone;
    const bool is_alone = entry.numel >= kAloneNumel;
    Open& at = is_alone ? alone : open[entry.lower_precision ? 1 : 0];
    // Written as a difference so that it cannot overflow.
    if (entry.numel > bucket_size_numel - at.filled_numel) close(at);
    const std::int64_t columns = Partition(entry.numel, shards).shard_numel();
    at.bucket.lower_precision = entry.lower_precision;
    at.bucket.slots.push_back({parameter, entry.numel, columns, at.bucket.shard_numel});
    at.bucket.shard_numel += columns;
    at.filled_numel += entry.numel;
    if (is_alone) close(alone);
  }
  for (Open& at : open) close(at);
  std::sort(buckets_.begin(), buckets_.end(), [](const Bucket& a, const Bucket& b) {
    return a.slots.back().parameter > b.slots.back().parameter;
  });
  locate(std::min({bucket_size_numel, eighth(table), kLargeGroupNumel}));
}

void BucketPlan::locate(std::int64_t group_size_numel) {
  std::int64_t group_numel = 0;
  for (std::size_t at = 0; at < buckets_.size(); ++at) {
    Bucket& bucket = buckets_[at];
    EQUIGRAD_CHECK(!bucket.slots.empty(), "layout.bucket_plan", "no bucket is empty");
    std::int64_t numel = 0, columns = 0;
    for (std::size_t slot = 0; slot < bucket.slots.size(); ++slot) {
      auto& location = location_by_parameter_.at(bucket.slots[slot].parameter);
      EQUIGRAD_CHECK(!location && bucket.slots[slot].offset == columns, "layout.bucket_plan",
                     "a parameter has one slot, and slots lie one behind the other");
      location = {at, slot};
      numel += bucket.slots[slot].numel;
      columns += bucket.slots[slot].shard_numel;
    }
    EQUIGRAD_CHECK(columns == bucket.shard_numel, "layout.bucket_plan",
                   "slots leave no column free");
    const bool joins = at > 0 && numel <= group_size_numel - group_numel;
    bucket.group = at == 0 ? 0 : buckets_[at - 1].group + (joins ? 0 : 1);
    group_numel = numel + (joins ? group_numel : 0);
    bucket.offset = shard_numel_;
    shard_numel_ += bucket.shard_numel;
  }
}

std::size_t BucketPlan::end_of_group(std::size_t bucket) const {
  const std::size_t group = buckets_.at(bucket).group;
  while (bucket < buckets_.size() && buckets_[bucket].group == group) ++bucket;
  return bucket;
}

std::optional<SlotLocation> BucketPlan::slot_of(std::size_t parameter) const {
  if (parameter >= location_by_parameter_.size())
    throw Error("layout.bucket_plan",
                "expected the index of one of " + std::to_string(location_by_parameter_.size()) +
                    " parameters, got " + std::to_string(parameter) + ". Look it up by name.");
  return location_by_parameter_[parameter];
}

}  // namespace equigrad::layout
