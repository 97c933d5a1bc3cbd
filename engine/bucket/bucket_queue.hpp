// BucketQueue: buckets from the first gradient that enters to the reduced sum that leaves.
//
// Gradients come from the window, sums go to the sink that it gave; in between, the queue does the
// steps of layout/launch_schedule.hpp, and asks the other ranks where the schedule needs them.
//
// Invariants: buckets are launched in the plan's order and delivered in that order, on every rank
// alike, whatever the order in which gradients arrive; so a rank without a gradient contributes
// zeros to the same parameter. At most one group of buckets is in flight (two while one leaves),
// one announced, and one filled; none between two calls if nothing overlaps. Nothing is delivered
// twice. A group leaves where the answer for it is heard, which may be in another engine's call:
// there, and nowhere later, all ranks are at the same place in their sequence of collectives.
// Where buckets are launched when full, the k-th gradient of one parameter between two flushes
// is sent in round k (reentrant checkpointing delivers a shared parameter in parts): what is added
// to what does not depend on which bucket was full when.
// Buckets that wait may leave eagerly, before flush(): what they sent stays here, so that a
// gradient for one of them takes all back, and every bucket leaves in the flush as if none had left
// before. In the exact order a bucket that waits holds what it would send, while no parameter has
// given it two contributions, and then exact sums; ranks agree on which before they launch.
// Shapes: delivered sums are [shards == 1 ? shards * shard_numel : shard_numel] of their bucket,
// the result dtype.
// Errors: those of the communicator; equigrad::Error when another rank's pass threw.
// Depends on: bucket/bucket, layout/launch_schedule, comm/reduction, agreement, memory/ledger.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "engine/agreement/coordinator.hpp"
#include "engine/bucket/bucket.hpp"
#include "engine/comm/reduction.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/launch_schedule.hpp"
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

// Where sums go.
class SumSink {
 public:
  // Where a sum may be written, if anywhere: [shard_numel]. It is added all the same.
  virtual at::Tensor block(std::size_t bucket) = 0;
  virtual void add(std::size_t bucket, at::Tensor sum) = 0;

 protected:
  ~SumSink() = default;
};

class BucketQueue {
 public:
  BucketQueue(const layout::BucketPlan& plan, agreement::Participant& participant,
              QueueOptions options, memory::Ledger& ledger, SumSink& sink);

  void copy_in(std::size_t parameter, at::Tensor gradient, double weight);
  // While nothing waits: whether buckets hold exact sums from the start (QueueOptions).
  void expect_sums(bool expects) { options_.expects_sums = sends_sums_ = expects; }
  // Whether groups that are full from now on leave, all but the last, though they wait for flush().
  // For the pinned order only: the native one adds in the buckets themselves. Whoever began it
  // ends it when no more gradients come: other ranks may wait for an announcement of this one. The
  // end waits for the answer to what was announced, and throws if another rank's pass did.
  void launch_eagerly(bool eager) { schedule_.launch_eagerly(eager); }
  void end_eager_launches();
  // Buckets that have left eagerly. All ranks flush with the same number; who finds another one
  // calls take_back(), which completes and drops them, and forgets what was delivered.
  std::size_t left_eagerly() const { return options_.launch_when_full ? 0 : schedule_.launched(); }
  void take_back();
  // Launches what has not been launched, empty buckets too, and delivers everything.
  void flush();
  // Forgets what was copied in; reductions in flight are completed and dropped.
  void discard() noexcept;
  // Of one parameter that waits for flush(), padding included: this rank's slice of the sum over
  // ranks, [shard_numel of its slot], the result dtype. It waits on. Collective.
  at::Tensor sum_of_waiting(std::size_t parameter);
  // Sets what waits of one parameter to zero.
  void forget(std::size_t parameter);

 private:
  struct InFlight {
    std::size_t bucket;
    comm::Reduction reduction;
    int64_t bytes;
    bool may_stay;      // where the sink says
    int64_t own_numel;  // of a sum that must not lie where its bucket still is, or 0
  };
  struct Late {
    int64_t round;
    std::size_t parameter;
    at::Tensor gradient;
    double weight;
  };
  void settle();
  void run();
  void perform(const layout::LaunchStep& step);
  void announce(std::size_t bucket);
  void hear(bool together);
  void launch(std::size_t bucket);
  void deliver(std::size_t bucket);
  void release(std::size_t bucket) noexcept;
  void release_all() noexcept;
  void drop_in_flight() noexcept;
  void copy_exactly(const layout::SlotLocation& where, at::Tensor gradient, double weight);
  agreement::Agreement meet_to_flush(std::size_t bucket, int64_t rounds);
  Bucket& open(std::size_t bucket);
  void to_exact_sums(Bucket& bucket);
  at::Tensor as_sent(const at::Tensor& held, bool lower_precision) const;
  comm::Reduction reduce(const at::Tensor& buffer) const;
  bool is_announced() const;
  bool is_exact() const { return options_.order == ReductionOrder::Exact; }
  bool waits_exactly() const { return is_exact() && !options_.launch_when_full; }
  at::ScalarType communication_dtype(bool lower_precision) const;
  at::ScalarType type_of_waiting(bool lower_precision, bool sums) const;
  comm::Communicator& communicator() const { return participant_.communicator(); }

  const layout::BucketPlan& plan_;
  agreement::Participant& participant_;
  QueueOptions options_;
  memory::Ledger& ledger_;
  SumSink& sink_;
  layout::LaunchSchedule schedule_;
  std::vector<std::optional<Bucket>> buckets_;
  std::deque<InFlight> in_flight_;
  bool sends_sums_;             // exact order, of what waits
  std::vector<int64_t> parts_;  // by parameter: gradients since the last flush
  std::vector<Late> late_;      // for rounds after the first
};

}  // namespace equigrad::bucket
