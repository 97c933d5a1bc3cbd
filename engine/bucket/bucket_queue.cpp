#include "engine/bucket/bucket_queue.hpp"

#include <algorithm>
#include <utility>

namespace equigrad::bucket {
namespace {

constexpr std::size_t kInFlight = 2;

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

}  // namespace

BucketQueue::BucketQueue(const layout::BucketPlan& plan, comm::Communicator& communicator,
                         QueueOptions options, trace::Ledger& ledger, Deliver deliver,
                         BeforeLaunch before_launch)
    : plan_(plan),
      communicator_(communicator),
      options_(options),
      ledger_(ledger),
      deliver_(std::move(deliver)),
      before_launch_(std::move(before_launch)),
      buckets_(plan.buckets().size()) {}

Bucket& BucketQueue::open(std::size_t bucket) {
  auto& entry = buckets_[bucket];
  if (!entry) {
    entry.emplace(plan_.buckets()[bucket], plan_.shards(), communicator_.world_size(),
                  options_.buffer);
    ledger_.charge(trace::Category::Buckets, bytes_of(entry->buffer()));
  }
  return *entry;
}

void BucketQueue::copy_in(std::size_t parameter, const at::Tensor& gradient, double weight) {
  const auto where = plan_.slot_of(parameter);
  if (!where) return;  // empty: nothing to add
  open(where->bucket).copy_in(where->slot, gradient, weight);
  if (!options_.launch_when_full) return;
  while (next_ < buckets_.size() && buckets_[next_] && buckets_[next_]->full()) {
    before_launch_(next_, false);
    launch_next();
  }
}

void BucketQueue::launch_next() {
  if (in_flight_.size() == kInFlight) deliver_oldest(false);
  const std::size_t bucket = next_++;
  const at::Tensor buffer = open(bucket).buffer();
  buckets_[bucket].reset();
  auto reduction = plan_.shards() == 1
                       ? comm::Reduction::all_reduce_sum(communicator_, options_.order, buffer,
                                                         options_.result_dtype)
                       : comm::Reduction::reduce_scatter_sum(communicator_, options_.order, buffer,
                                                             options_.result_dtype);
  in_flight_.push_back({bucket, std::move(reduction), bytes_of(buffer)});
}

void BucketQueue::deliver_oldest(bool drop) {
  auto oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  ledger_.credit(trace::Category::Buckets, oldest.bytes);
  auto sum = oldest.reduction.finish();
  if (drop) return;
  deliver_(oldest.bucket, sum.narrow(0, 0, plan_.buckets()[oldest.bucket].shard_numel));
}

void BucketQueue::flush() {
  // A parameter that contributes again after its bucket left (reentrant checkpointing) opens it
  // anew: one more round.
  bool opened_again = true;
  bool all_flush = false;
  while (opened_again) {
    while (next_ < buckets_.size()) {
      if (!all_flush) all_flush = before_launch_(next_, true);
      launch_next();
    }
    while (!in_flight_.empty()) deliver_oldest(false);
    next_ = 0;
    opened_again = std::any_of(buckets_.begin(), buckets_.end(),
                               [](const auto& bucket) { return bucket.has_value(); });
  }
}

void BucketQueue::discard() {
  while (!in_flight_.empty()) deliver_oldest(true);
  for (auto& bucket : buckets_) {
    if (bucket) ledger_.credit(trace::Category::Buckets, bytes_of(bucket->buffer()));
    bucket.reset();
  }
  next_ = 0;
}

}  // namespace equigrad::bucket
