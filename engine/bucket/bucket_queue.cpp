#include "engine/bucket/bucket_queue.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "engine/error.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::bucket {
namespace {

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

}  // namespace

BucketQueue::BucketQueue(const layout::BucketPlan& plan, comm::Communicator& communicator,
                         QueueOptions options, trace::Ledger& ledger, Deliver deliver,
                         BeforeLaunch before_launch, BlockFor block_for, Announcing announcing)
    : plan_(plan),
      communicator_(communicator),
      options_(options),
      ledger_(ledger),
      deliver_(std::move(deliver)),
      before_launch_(std::move(before_launch)),
      block_for_(std::move(block_for)),
      announcing_(std::move(announcing)),
      buckets_(plan.buckets().size()),
      sends_sums_(options.expects_sums) {}

Bucket& BucketQueue::open(std::size_t bucket) {
  auto& entry = buckets_[bucket];
  if (!entry) {
    const auto& place = plan_.buckets()[bucket];
    auto options = options_.buffer;
    if (options_.launch_when_full)
      options = options.dtype(communication_dtype(place.lower_precision));
    if (waits_exactly())
      options = options.dtype(type_of_waiting(place.lower_precision, sends_sums_));
    entry.emplace(place, plan_.shards(), communicator_.world_size(), options);
    ledger_.charge(trace::Category::Buckets, entry->bytes());
  }
  return *entry;
}

void BucketQueue::copy_in(std::size_t parameter, at::Tensor gradient, double weight) {
  const auto where = plan_.slot_of(parameter);
  if (!where) return;  // empty: nothing to add
  if (options_.launch_when_full) {
    weight *= options_.before_sum;
    if (parts_.size() <= parameter) parts_.resize(parameter + 1);
    const int64_t round = ++parts_[parameter];
    if (round > 1) return late_.push_back({round, parameter, std::move(gradient), weight});
  }
  if (where->bucket < eagerly_sent()) take_back();
  auto& bucket = open(where->bucket);
  if (!waits_exactly()) {
    const bool was_full = bucket.full();
    bucket.copy_in(where->slot, std::move(gradient), weight);
    if ((options_.launch_when_full || eager_) && bucket.full() && !was_full) launch_full();
    return;
  }
  weight *= options_.before_sum;
  if (!bucket.holds_exact_sums() && bucket.holds(where->slot)) to_exact_sums(bucket);
  const bool lower = plan_.buckets()[where->bucket].lower_precision;
  if (!bucket.holds_exact_sums()) return bucket.copy_in(where->slot, std::move(gradient), weight);
  const auto product = weight == 1.0 ? gradient : gradient.to(at::kFloat).mul(weight);
  bucket.copy_in(where->slot, product.to(communication_dtype(lower)), 1.0);
}

void BucketQueue::to_exact_sums(Bucket& bucket) {
  const int64_t before = bucket.bytes();
  bucket.to_exact_sums();
  const int64_t after = bucket.bytes();
  ledger_.charge(trace::Category::Buckets, after);
  ledger_.credit(trace::Category::Buckets, before);
  sends_sums_ = true;
}

bool BucketQueue::agree_on_sums(std::size_t parameter) {
  const auto where = plan_.slot_of(parameter);
  const int64_t mine = sends_sums_ ? 2 : 1;
  return before_launch_(where ? where->bucket : 0, mine).greatest_flag == 2;
}

at::ScalarType BucketQueue::type_of_waiting(bool lower_precision, bool sums) const {
  return sums ? kernels::kExactSum : communication_dtype(lower_precision);
}

at::ScalarType BucketQueue::communication_dtype(bool lower_precision) const {
  return options_.communication_dtypes[lower_precision ? 1 : 0].value_or(
      c10::typeMetaToScalarType(options_.buffer.dtype()));
}

at::Tensor BucketQueue::as_sent(const at::Tensor& held, bool lower_precision) const {
  if (options_.launch_when_full || is_exact()) return held;  // it was copied in as it is sent
  if (options_.before_sum == 1.0) return held.to(communication_dtype(lower_precision));
  return held.to(at::kFloat).mul(options_.before_sum).to(communication_dtype(lower_precision));
}

// When a bucket has been filled: one after that which completed a group hears the answer for it.
// The last group of a pass has next to nothing left to overlap with: it goes with the flush, which
// ranks agree on anyway.
void BucketQueue::launch_full() {
  settle();
  while (!postponed_) {
    const std::size_t first = announced_ ? plan_.end_of_group(next_) : next_;
    if (!is_group_full(first) || plan_.end_of_group(first) == buckets_.size()) return;
    announced_ ? settle() : announce();
  }
}

void BucketQueue::announce() {
  announced_ = true;
  const auto then = [this](bool together) {
    announced_ = false;
    postponed_ = !together;
    if (together) launch_group();
  };
  if (options_.overlaps && announcing_.announce)
    announcing_.announce(next_, then);
  else
    then(before_launch_(next_, 0).together);
}

// The answer may have been heard, and have thrown, where another engine spoke.
void BucketQueue::settle() {
  if (!announced_) return;
  announcing_.settle();
  if (!std::exchange(announced_, false)) return;
  throw Error("backward",
              "expected every rank to finish its backward pass, got an exception on another rank. "
              "It counts on no rank; do it again, or leave it out, on all of them.");
}

bool BucketQueue::is_group_full(std::size_t first) const {
  for (std::size_t bucket = first; bucket < plan_.end_of_group(first); ++bucket)
    if (!buckets_[bucket] || !buckets_[bucket]->full()) return false;
  return true;
}

// The groups before it have had the time to be sent that this one took to fill.
void BucketQueue::launch_group() {
  const std::size_t first = next_;
  for (const std::size_t end = plan_.end_of_group(first); next_ < end;) launch_next();
  while (!in_flight_.empty() && (!options_.overlaps || in_flight_.front().bucket < first))
    deliver_oldest();
}

at::Tensor BucketQueue::columns_of(std::size_t parameter) {
  const auto where = plan_.slot_of(parameter);
  if (!where || !buckets_[where->bucket]) return {};
  return buckets_[where->bucket]->columns_of(where->slot);
}

void BucketQueue::launch_next() {
  const std::size_t bucket = next_++;
  auto& opened = open(bucket);
  if (waits_exactly() && sends_sums_ && !opened.holds_exact_sums()) to_exact_sums(opened);
  const at::Tensor held = opened.buffer();
  const at::Tensor buffer = as_sent(held, plan_.buckets()[bucket].lower_precision);
  const bool is_here = eager_ && buffer.is_same(held);
  const int64_t bytes = is_here ? 0 : bytes_of(buffer);
  ledger_.charge(trace::Category::Buckets, bytes - (eager_ ? 0 : bytes_of(held)));
  if (!eager_) buckets_[bucket].reset();
  auto reduction = plan_.shards() == 1
                       ? comm::Reduction::all_reduce_sum(communicator_, options_.order, buffer,
                                                         options_.result_dtype)
                       : comm::Reduction::reduce_scatter_sum(communicator_, options_.order, buffer,
                                                             options_.result_dtype);
  // The sum of an all-reduce's only bucket is written to the bucket itself.
  const auto& place = plan_.buckets()[bucket];
  const bool has_own = plan_.buckets().size() == 1 || buffer.numel() != place.shard_numel;
  const bool may_stay =
      options_.order != ReductionOrder::Native && (plan_.shards() > 1 || !has_own);
  const int64_t sum_numel = plan_.shards() == 1 ? buffer.numel() : place.shard_numel;
  in_flight_.push_back({bucket, std::move(reduction), bytes, may_stay, eager_ ? sum_numel : 0});
}

void BucketQueue::deliver_oldest() {
  auto oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  ledger_.credit(trace::Category::Buckets, oldest.bytes);
  at::Tensor block;
  if (oldest.may_stay && block_for_) block = block_for_(oldest.bucket);
  if (block.defined() && block.scalar_type() != options_.result_dtype) block.reset();
  if (!block.defined() && oldest.own_numel != 0)
    block = at::empty({oldest.own_numel}, options_.buffer.dtype(options_.result_dtype));
  const auto sum = oldest.reduction.finish(block);
  if (oldest.own_numel != 0 && !eager_) release(oldest.bucket);
  deliver_(oldest.bucket, sum.narrow(0, 0, plan_.buckets()[oldest.bucket].shard_numel));
}

void BucketQueue::release(std::size_t bucket) noexcept {
  if (buckets_[bucket]) ledger_.credit(trace::Category::Buckets, buckets_[bucket]->bytes());
  buckets_[bucket].reset();
}

void BucketQueue::launch_round() {
  while (next_ < buckets_.size()) launch_group();
  while (!in_flight_.empty()) deliver_oldest();
  next_ = 0;
}

void BucketQueue::flush() {
  settle();
  int64_t rounds = sends_sums_ ? 2 : 1;
  for (const auto& late : late_) rounds = std::max(rounds, late.round);
  // Some ranks may still be at full buckets that this one has not filled; it launches them too.
  for (;;) {
    const auto met = before_launch_(next_, rounds);
    rounds = std::max(rounds, met.greatest_flag);
    if (met.least_flag > 0) break;
    launch_group();
  }
  if (waits_exactly()) sends_sums_ = std::exchange(rounds, 1) == 2;
  eager_ = false;
  const std::size_t arrived = in_flight_.empty() ? next_ : in_flight_.front().bucket;
  for (std::size_t bucket = 0; bucket < arrived; ++bucket) release(bucket);
  launch_round();
  sends_sums_ = options_.expects_sums;
  for (int64_t round = 2; round <= rounds; ++round) {
    for (const auto& late : late_) {
      if (late.round != round) continue;
      const auto where = plan_.slot_of(late.parameter);
      open(where->bucket).copy_in(where->slot, late.gradient, late.weight);
    }
    launch_round();
  }
  late_.clear();
  parts_.clear();
  postponed_ = false;
}

void BucketQueue::take_back() {
  settle();
  complete();
  next_ = 0;
  eager_ = false;
}

void BucketQueue::complete() noexcept {
  for (auto& flying : in_flight_) {
    ledger_.credit(trace::Category::Buckets, flying.bytes);
    try {
      flying.reduction.drop();
    } catch (...) {
      // A peer is lost: the next collective says so.
    }
  }
  in_flight_.clear();
}

void BucketQueue::discard() noexcept {
  try {
    settle();
  } catch (...) {
    // What made it throw has thrown on every rank.
  }
  announced_ = false;
  take_back();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) release(bucket);
  late_.clear();
  parts_.clear();
  postponed_ = false;
  sends_sums_ = options_.expects_sums;
}

}  // namespace equigrad::bucket
