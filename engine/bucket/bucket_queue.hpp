// BucketQueue: buckets from the first gradient that enters to the reduced sum that leaves.
//
// Invariants: buckets are launched in the plan's order and delivered in that order, on every rank
// alike, whatever the order in which gradients arrive; so a rank without a gradient contributes
// zeros to the same parameter. At most two reductions are in flight. Nothing is delivered twice.
// Shapes: delivered sums are [shards == 1 ? shards * shard_numel : shard_numel] of their bucket,
// fp32 or the result dtype.
// Errors: those of the communicator.
// Depends on: bucket/bucket, layout/bucket_plan, comm/reduction, trace/ledger.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "engine/bucket/bucket.hpp"
#include "engine/comm/reduction.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/trace/ledger.hpp"

namespace equigrad::bucket {

struct QueueOptions {
  at::TensorOptions buffer;     // dtype and device of the buffers: what travels
  at::ScalarType result_dtype;  // of the sums
  ReductionOrder order = ReductionOrder::Pinned;
  bool launch_when_full = false;  // otherwise buckets wait for flush()
};

class BucketQueue {
 public:
  using Deliver = std::function<void(std::size_t bucket, at::Tensor sum)>;
  // Called before a bucket's collective, where ranks may have to agree on what comes next. True if
  // all of them are flushing, so that nothing but buckets comes until the flush ends and no more
  // calls are needed.
  using BeforeLaunch = std::function<bool(std::size_t bucket, bool flushing)>;

  BucketQueue(const layout::BucketPlan& plan, comm::Communicator& communicator,
              QueueOptions options, trace::Ledger& ledger, Deliver deliver,
              BeforeLaunch before_launch);

  void copy_in(std::size_t parameter, const at::Tensor& gradient, double weight);
  // Launches what has not been launched, empty buckets too, and delivers everything.
  void flush();
  // Forgets what was copied in; reductions in flight are completed and dropped.
  void discard();

 private:
  struct InFlight {
    std::size_t bucket;
    comm::Reduction reduction;
    int64_t bytes;
  };
  void launch_next();
  void deliver_oldest(bool drop);
  Bucket& open(std::size_t bucket);

  const layout::BucketPlan& plan_;
  comm::Communicator& communicator_;
  QueueOptions options_;
  trace::Ledger& ledger_;
  Deliver deliver_;
  BeforeLaunch before_launch_;
  std::vector<std::optional<Bucket>> buckets_;
  std::deque<InFlight> in_flight_;
  std::size_t next_ = 0;  // the next bucket to launch
};

}  // namespace equigrad::bucket
