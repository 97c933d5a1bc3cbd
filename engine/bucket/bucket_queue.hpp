// BucketQueue: buckets from the first gradient that enters to the reduced sum that leaves.
//
// Invariants: buckets are launched in the plan's order and delivered in that order, on every rank
// alike, whatever the order in which gradients arrive; so a rank without a gradient contributes
// zeros to the same parameter. At most one group of buckets is in flight (two while one leaves),
// one announced, and one filled; none between two calls if nothing overlaps. Nothing is delivered
// twice.
// Where buckets are launched when full, the k-th gradient of one parameter between two flushes
// is sent in round k (reentrant checkpointing delivers a shared parameter in parts): what is added
// to what does not depend on which bucket was full when.
// Buckets that wait may be sent eagerly: what they sent stays until flush(), so that a gradient for
// one of them takes all back, and every bucket leaves in the flush as if none had left before.
// In the exact order a bucket that waits holds what it would send, while no parameter has given it
// two contributions, and then exact sums; ranks agree on which before they launch.
// Shapes: delivered sums are [shards == 1 ? shards * shard_numel : shard_numel] of their bucket,
// the result dtype.
// Errors: those of the communicator.
// Depends on: bucket/bucket, layout/bucket_plan, comm/reduction, agreement/coordinator,
// trace/ledger.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "engine/agreement/coordinator.hpp"
#include "engine/bucket/bucket.hpp"
#include "engine/comm/reduction.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::bucket {

struct QueueOptions {
  at::TensorOptions buffer;     // device, and dtype of what waits for flush() or is sent as it is
  at::ScalarType result_dtype;  // of the sums
  ReductionOrder order = ReductionOrder::Pinned;
  bool launch_when_full = false;  // all groups but the last; otherwise they wait for flush()
  // What a bucket is sent in, by its lower_precision; nothing: the type of `buffer`.
  std::array<std::optional<at::ScalarType>, 2> communication_dtypes = {};
  double before_sum = 1.0;    // every contribution is multiplied by it, in fp32, before it is sent
  bool expects_sums = false;  // exact order: buckets that wait hold sums from the start
  bool overlaps = true;       // otherwise a full group is delivered before copy_in() returns
};

class BucketQueue {
 public:
  using Deliver = std::function<void(std::size_t bucket, at::Tensor sum)>;
  // Called before a group's collectives, where ranks agree on what comes next. `rounds` is 0 for
  // full buckets, and how many this rank needs for a flush; for one of buckets that waited 2 if
  // this rank must send exact sums, else 1. Once all ranks flush it is called no more: nothing but
  // buckets comes until the flush ends.
  using BeforeLaunch = std::function<agreement::Agreement(std::size_t bucket, int64_t rounds)>;
  // The same for full buckets, without waiting, where something overlaps: `then` is told whether
  // they may leave, at the latest in settle(). None: before_launch is asked.
  struct Announcing {
    std::function<void(std::size_t bucket, std::function<void(bool together)> then)> announce;
    std::function<void()> settle;
  };
  // Where a sum may be written, if anywhere: [shard_numel]. It is delivered all the same.
  using BlockFor = std::function<at::Tensor(std::size_t bucket)>;

  BucketQueue(const layout::BucketPlan& plan, comm::Communicator& communicator,
              QueueOptions options, trace::Ledger& ledger, Deliver deliver,
              BeforeLaunch before_launch, BlockFor block_for = {}, Announcing announcing = {});

  void copy_in(std::size_t parameter, at::Tensor gradient, double weight);
  // Whether groups that are full from now on leave, all but the last, though they wait for flush().
  // For the pinned order only: the native one adds in the buckets themselves.
  void send_eagerly(bool eager) { eager_ = eager; }
  // While nothing waits: whether buckets hold exact sums from the start (QueueOptions).
  void expect_sums(bool expects) { options_.expects_sums = sends_sums_ = expects; }
  // Whether groups that may be sent eagerly have not been announced, and will be asked for.
  bool owes_word() const {
    return eager_ && !postponed_ && !announced_ && next_ < buckets_.size() &&
           plan_.end_of_group(next_) < buckets_.size();
  }
  // Buckets sent eagerly. All ranks flush with the same number; who finds another one calls
  // take_back(), which completes and drops them, and forgets what was delivered.
  std::size_t eagerly_sent() const { return options_.launch_when_full ? 0 : next_; }
  void take_back();
  // Waits for the answer to what was announced. flush() and discard() do.
  void settle();
  // Launches what has not been launched, empty buckets too, and delivers everything.
  void flush();
  // Forgets what was copied in; reductions in flight are completed and dropped.
  void discard() noexcept;
  // What this rank has copied in of one parameter and not launched: [shards, its shard_numel], a
  // view of its bucket; undefined if that has not been opened.
  at::Tensor columns_of(std::size_t parameter);
  // What was held, as it is sent: multiplied and rounded once; itself if nothing is to be done.
  at::Tensor as_sent(const at::Tensor& held, bool lower_precision) const;
  // Exact order: whether any rank holds sums of what waits, asked at parameter's bucket.
  // Collective.
  bool agree_on_sums(std::size_t parameter);
  // The same for one parameter's columns: exact sums, or what was copied in, as it is sent.
  at::ScalarType type_of_waiting(bool lower_precision, bool sums) const;

 private:
  struct InFlight {
    std::size_t bucket;
    comm::Reduction reduction;
    int64_t bytes;
    bool may_stay;      // where block_for says
    int64_t own_numel;  // of a sum that must not lie where its bucket still is, or 0
  };
  struct Late {
    int64_t round;
    std::size_t parameter;
    at::Tensor gradient;
    double weight;
  };
  void launch_full();
  void launch_group();
  bool is_group_full(std::size_t first) const;
  void announce();
  void launch_round();
  void complete() noexcept;
  void release(std::size_t bucket) noexcept;
  void launch_next();
  void deliver_oldest();
  Bucket& open(std::size_t bucket);
  void to_exact_sums(Bucket& bucket);
  bool is_exact() const { return options_.order == ReductionOrder::Exact; }
  bool waits_exactly() const { return is_exact() && !options_.launch_when_full; }
  at::ScalarType communication_dtype(bool lower_precision) const;

  const layout::BucketPlan& plan_;
  comm::Communicator& communicator_;
  QueueOptions options_;
  trace::Ledger& ledger_;
  Deliver deliver_;
  BeforeLaunch before_launch_;
  BlockFor block_for_;
  Announcing announcing_;
  std::vector<std::optional<Bucket>> buckets_;
  std::deque<InFlight> in_flight_;
  std::size_t next_ = 0;        // the next bucket to launch
  bool sends_sums_ = false;     // exact order, of what waits
  bool postponed_ = false;      // full buckets wait for the flush
  bool announced_ = false;      // the group of next_
  bool eager_ = false;          // those that wait leave when they are full
  std::vector<int64_t> parts_;  // by parameter: gradients since the last flush
  std::vector<Late> late_;      // for rounds after the first
};

}  // namespace equigrad::bucket
