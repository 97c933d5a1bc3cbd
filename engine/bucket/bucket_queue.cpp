#include "engine/bucket/bucket_queue.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <utility>

#include "engine/comm/communicator.hpp"
#include "engine/error.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::bucket {
namespace {

using layout::BucketState;
using layout::LaunchAnswer;
using layout::LaunchPhase;
using layout::LaunchStep;

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

}  // namespace

BucketQueue::BucketQueue(const layout::BucketPlan& plan, agreement::Participant& participant,
                         QueueOptions options, memory::Ledger& ledger, SumSink& sink)
    : plan_(plan),
      participant_(participant),
      options_(options),
      ledger_(ledger),
      sink_(sink),
      schedule_(plan, options.launch_when_full, options.overlaps),
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
    entry.emplace(place, plan_.shards(), communicator().world_size(), options);
    ledger_.charge(memory::Category::Buckets, entry->bytes());
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
  if (where->bucket < left_eagerly()) take_back();
  if (waits_exactly()) return copy_exactly(*where, std::move(gradient), weight);
  auto& bucket = open(where->bucket);
  const bool was_full = bucket.full();
  bucket.copy_in(where->slot, std::move(gradient), weight);
  schedule_.fill(where->bucket, bucket.full());
  if (bucket.full() && !was_full) run();
}

void BucketQueue::copy_exactly(const layout::SlotLocation& where, at::Tensor gradient,
                               double weight) {
  auto& bucket = open(where.bucket);
  schedule_.fill(where.bucket, false);
  weight *= options_.before_sum;
  if (!bucket.holds_exact_sums() && bucket.holds(where.slot)) to_exact_sums(bucket);
  const bool lower = plan_.buckets()[where.bucket].lower_precision;
  if (!bucket.holds_exact_sums()) return bucket.copy_in(where.slot, std::move(gradient), weight);
  const auto product = weight == 1.0 ? gradient : gradient.to(at::kFloat).mul(weight);
  bucket.copy_in(where.slot, product.to(communication_dtype(lower)), 1.0);
}

void BucketQueue::to_exact_sums(Bucket& bucket) {
  const int64_t before = bucket.bytes();
  bucket.to_exact_sums();
  const int64_t after = bucket.bytes();
  ledger_.charge(memory::Category::Buckets, after);
  ledger_.credit(memory::Category::Buckets, before);
  sends_sums_ = true;
}

at::ScalarType BucketQueue::type_of_waiting(bool lower_precision, bool sums) const {
  return sums ? kernels::kExactSum : communication_dtype(lower_precision);
}

at::ScalarType BucketQueue::communication_dtype(bool lower_precision) const {
  return options_.communication_dtypes[lower_precision ? 1 : 0].value_or(
      c10::typeMetaToScalarType(options_.buffer.dtype()));
}

// Multiplied and rounded once; itself if nothing is to be done.
at::Tensor BucketQueue::as_sent(const at::Tensor& held, bool lower_precision) const {
  if (options_.launch_when_full || is_exact()) return held;  // it was copied in as it is sent
  if (options_.before_sum == 1.0) return held.to(communication_dtype(lower_precision));
  return held.to(at::kFloat).mul(options_.before_sum).to(communication_dtype(lower_precision));
}

comm::Reduction BucketQueue::reduce(const at::Tensor& buffer) const {
  const auto sum =
      plan_.shards() == 1 ? &comm::Reduction::all_reduce_sum : &comm::Reduction::reduce_scatter_sum;
  return sum(communicator(), options_.order, buffer, options_.result_dtype);
}

void BucketQueue::run() {
  while (const auto step = schedule_.next()) perform(*step);
}

void BucketQueue::perform(const LaunchStep& step) {
  switch (step.action) {
    case LaunchStep::Action::Announce:
      return announce(step.bucket);
    case LaunchStep::Action::Hear:
      return settle();
    case LaunchStep::Action::Open:
      open(step.bucket);
      return;
    case LaunchStep::Action::Launch:
      return launch(step.bucket);
    case LaunchStep::Action::Deliver:
      return deliver(step.bucket);
    case LaunchStep::Action::Release:
      return release(step.bucket);
  }
}

void BucketQueue::announce(std::size_t bucket) {
  const agreement::LaunchBucket place{.bucket = bucket};
  if (!options_.overlaps) return hear(participant_.meet(place).together);
  participant_.announce(
      place, [this](const agreement::Agreement& agreement) { hear(agreement.together); });
}

void BucketQueue::hear(bool together) {
  schedule_.answer(together ? LaunchAnswer::Together : LaunchAnswer::Postponed);
  run();
}

bool BucketQueue::is_announced() const {
  return schedule_.phase() == LaunchPhase::Announced || schedule_.phase() == LaunchPhase::Due;
}

// The answer may have been heard, and have thrown, where another engine spoke.
void BucketQueue::settle() {
  if (!is_announced()) return;
  participant_.settle();
  if (!is_announced()) return;
  schedule_.answer(LaunchAnswer::Lost);
  throw Error("backward",
              "expected every rank to finish its backward pass, got an exception on another rank. "
              "It counts on no rank; do it again, or leave it out, on all of them.");
}

// Others may wait to hear of a group that is full there and will not be here: this point is none of
// theirs, so they are postponed. Nobody waits for the answer.
void BucketQueue::end_eager_launches() {
  const auto restore = c10::make_scope_exit([this] { schedule_.launch_eagerly(false); });
  settle();
  const std::size_t next = schedule_.launched();
  const bool may_be_awaited = !options_.launch_when_full && next < buckets_.size() &&
                              schedule_.phase() == LaunchPhase::Filling &&
                              plan_.end_of_group(next) < buckets_.size();
  if (!may_be_awaited) return;
  try {
    participant_.announce(agreement::NoFullBucket{}, [](const agreement::Agreement&) {});
  } catch (...) {
    // A peer is lost, or all know that a pass threw: this one ends, and the next synchronisation
    // point tells.
  }
}

void BucketQueue::launch(std::size_t bucket) {
  auto& opened = *buckets_[bucket];
  const auto& place = plan_.buckets()[bucket];
  const bool is_kept = schedule_.state(bucket) == BucketState::SentKept;
  if (waits_exactly() && sends_sums_ && !opened.holds_exact_sums()) to_exact_sums(opened);
  const at::Tensor held = opened.buffer();
  const at::Tensor buffer = as_sent(held, place.lower_precision);
  const int64_t bytes = is_kept && buffer.is_same(held) ? 0 : bytes_of(buffer);
  ledger_.charge(memory::Category::Buckets, bytes - (is_kept ? 0 : bytes_of(held)));
  if (!is_kept) buckets_[bucket].reset();
  auto charged = c10::make_scope_exit([&] { ledger_.credit(memory::Category::Buckets, bytes); });
  auto reduction = reduce(buffer);
  charged.release();
  // The only bucket of an all-reduce has its block: its own.
  const bool has_own = plan_.buckets().size() == 1 || buffer.numel() != place.shard_numel;
  const bool may_stay =
      options_.order != ReductionOrder::Native && (plan_.shards() > 1 || !has_own);
  const int64_t sum_numel = plan_.shards() == 1 ? buffer.numel() : place.shard_numel;
  in_flight_.push_back({bucket, std::move(reduction), bytes, may_stay, is_kept ? sum_numel : 0});
}

void BucketQueue::deliver(std::size_t bucket) {
  if (in_flight_.empty() || in_flight_.front().bucket != bucket) return;  // its launch threw
  auto oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  ledger_.credit(memory::Category::Buckets, oldest.bytes);
  at::Tensor block;
  if (oldest.may_stay) block = sink_.block(bucket);
  if (block.defined() && block.scalar_type() != options_.result_dtype) block.reset();
  if (!block.defined() && oldest.own_numel != 0)
    block = at::empty({oldest.own_numel}, options_.buffer.dtype(options_.result_dtype));
  const auto sum = oldest.reduction.finish(block);
  if (schedule_.state(bucket) == BucketState::Arrived) release(bucket);
  sink_.add(bucket, sum.narrow(0, 0, plan_.buckets()[bucket].shard_numel));
}

void BucketQueue::release(std::size_t bucket) noexcept {
  if (buckets_[bucket]) ledger_.credit(memory::Category::Buckets, buckets_[bucket]->bytes());
  buckets_[bucket].reset();
}

void BucketQueue::release_all() noexcept {
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) release(bucket);
}

// `rounds`: how many this rank needs; of buckets that wait 2 if it must send exact sums, else 1.
// Those leave in a flush that ranks have agreed on, so only what is sent may be unknown.
agreement::Agreement BucketQueue::meet_to_flush(std::size_t bucket, int64_t rounds) {
  const bool is_known = !options_.launch_when_full && (!is_exact() || options_.expects_sums);
  if (is_known) return {true, rounds, rounds, {}};
  return participant_.meet(agreement::LaunchBucket{.bucket = bucket, .rounds = rounds});
}

void BucketQueue::flush() {
  settle();
  int64_t rounds = sends_sums_ ? 2 : 1;
  for (const auto& late : late_) rounds = std::max(rounds, late.round);
  // Some ranks may still be at full buckets that this one has not filled; it launches them too.
  for (;;) {
    const auto agreement = meet_to_flush(schedule_.launched(), rounds);
    rounds = std::max(rounds, agreement.greatest_flag);
    if (agreement.least_flag > 0) break;
    hear(true);
  }
  if (waits_exactly()) sends_sums_ = std::exchange(rounds, 1) == 2;
  schedule_.flush();
  run();
  sends_sums_ = options_.expects_sums;
  for (int64_t round = 2; round <= rounds; ++round) {
    for (const auto& late : late_) {
      if (late.round != round) continue;
      const auto where = plan_.slot_of(late.parameter);
      open(where->bucket).copy_in(where->slot, late.gradient, late.weight);
      schedule_.fill(where->bucket, false);
    }
    schedule_.flush();
    run();
  }
  late_.clear();
  parts_.clear();
}

void BucketQueue::take_back() {
  settle();
  drop_in_flight();
  schedule_.take_back();
}

void BucketQueue::drop_in_flight() noexcept {
  for (auto& flying : in_flight_) {
    ledger_.credit(memory::Category::Buckets, flying.bytes);
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
  drop_in_flight();
  schedule_.clear();
  release_all();
  late_.clear();
  parts_.clear();
  sends_sums_ = options_.expects_sums;
}

at::Tensor BucketQueue::sum_of_waiting(std::size_t parameter) {
  const auto where = *plan_.slot_of(parameter);
  const auto& slot = plan_.slot(where);
  const bool lower = plan_.buckets()[where.bucket].lower_precision;
  auto type = options_.result_dtype;
  if (waits_exactly()) {
    const auto agreement = meet_to_flush(where.bucket, sends_sums_ ? 2 : 1);
    type = type_of_waiting(lower, agreement.greatest_flag == 2);
  }
  // An all-reduce cuts its buffer into W slices.
  const int64_t numel = plan_.shards() * slot.shard_numel;
  const int64_t world = communicator().world_size();
  const auto buffer = at::zeros({(numel + world - 1) / world * world}, options_.buffer.dtype(type));
  if (auto& bucket = buckets_[where.bucket]) {
    auto columns = bucket->columns_of(where.slot);
    if (type == kernels::kExactSum && columns.scalar_type() != type)
      columns = kernels::exact_of(columns);
    buffer.narrow(0, 0, numel).view({plan_.shards(), -1}).copy_(columns);
  }
  return reduce(as_sent(buffer, lower)).finish().narrow(0, 0, slot.shard_numel);
}

void BucketQueue::forget(std::size_t parameter) {
  const auto where = *plan_.slot_of(parameter);
  if (auto& bucket = buckets_[where.bucket]) bucket->columns_of(where.slot).zero_();
}

}  // namespace equigrad::bucket
