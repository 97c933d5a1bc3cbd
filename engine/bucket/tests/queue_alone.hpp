// Queue: a bucket queue of one rank, alone or with another one that says what the test sets, and
// what the queue said, launched and delivered.
//
// Invariants: the other rank contributes zeros, and has come to the same place as this one unless
// the test sets something else.
// Shapes: parameters of 6, 25, 4, 6 and 9 elements if none are given.
// Errors: those of the queue.   Depends on: engine/bucket/bucket_queue, conformance/sample.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "conformance/testing/sample.hpp"
#include "engine/bucket/bucket_queue.hpp"
#include "engine/error.hpp"

namespace equigrad::bucket {

using conformance::sample;
using conformance::table_of;
using Order = std::vector<std::size_t>;
using Numbers = std::vector<int64_t>;

// Rank 0 of one, or of two; counts what is under way.
class OneOfTwo final : public comm::Communicator {
 public:
  explicit OneOfTwo(int world) : world_(world) {}
  int rank() const override { return 0; }
  int world_size() const override { return world_; }
  c10::Device device() const override { return c10::kCPU; }
  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    if (refuses) throw Error("test", "refused");
    ++launches;
    most = std::max(most, ++under_way);
    return std::make_unique<Then>([this, output, input] {
      const auto rows = output.zero_().view({world_, -1});
      rows[0].copy_(input.view({world_, -1})[0]);
      --under_way;
    });
  }
  // A message: participant, kind of the point, bucket, flag (0: full buckets; else rounds of a
  // flush). The end of a pass is bucket -1 here.
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    if (input.scalar_type() != at::kLong) throw Error("test", "all_gather");
    const auto mine = input.clone();
    const bool ends = mine[1].item<int64_t>() == agreement::kind_of<agreement::NoFullBucket>();
    const int64_t number = ends ? -1 : mine[2].item<int64_t>(), flag = mine[3].item<int64_t>();
    (flag == 0 ? announced : asked).push_back(number);
    ++unheard;
    return std::make_unique<Then>([this, output, mine, number, flag] {
      auto other = mine.clone();
      if (abandons) other[1] = agreement::kind_of<agreement::Abandoned>();
      if (postpone && flag == 0) other[2] = -2;
      if (flag != 0) other[3] = number < full_there ? 0 : std::max(flag, rounds_of_others);
      output.view({2, -1})[0].copy_(mine);
      output.view({2, -1})[1].copy_(other);
      --unheard;
    });
  }
  comm::PendingPtr all_reduce_sum(const at::Tensor&) override { throw Error("test", "native"); }
  comm::PendingPtr reduce_scatter_sum(const at::Tensor&, const at::Tensor&) override {
    throw Error("test", "native");
  }
  comm::PendingPtr broadcast(const at::Tensor&, int) override { throw Error("test", "broadcast"); }

  int launches = 0, under_way = 0, most = 0;
  Numbers announced, asked;
  int unheard = 0;
  // The other rank.
  bool postpone = false, abandons = false, refuses = false;
  int64_t full_there = 0;  // so many buckets are full there; it waits for this rank to launch them
  int64_t rounds_of_others = 0;

 private:
  struct Then final : comm::Pending {
    explicit Then(std::function<void()> what) : what(std::move(what)) {}
    void wait() override { what(); }
    std::function<void()> what;
  };
  int world_;
};

// Five parameters in four buckets: p4 | p3 p2 (exactly a bucket) | p1 (larger than one) | p0.
struct Queue {
  struct Sink final : SumSink {
    at::Tensor block(std::size_t) override { return {}; }
    void add(std::size_t bucket, at::Tensor sum) override {
      delivered.push_back(bucket);
      sums.resize(std::max(sums.size(), bucket + 1));
      sums[bucket] = sum.clone();
    }
    Order delivered;
    std::vector<at::Tensor> sums;
  };
  layout::ParameterTable table;
  layout::BucketPlan plan;
  OneOfTwo communicator;
  agreement::Participant participant;
  memory::Ledger ledger;
  Sink sink;
  BucketQueue queue;
  Order& delivered = sink.delivered;

  explicit Queue(bool when_full, int world = 2, bool overlaps = true,
                 const std::vector<int64_t>& numels = {6, 25, 4, 6, 9},
                 int64_t bucket_size_numel = 10)
      : table(table_of(numels)),
        plan(table, 1, bucket_size_numel),
        communicator(world),
        participant(communicator, numels.size()),
        queue(plan, participant,
              {.buffer = at::kFloat,
               .result_dtype = at::kFloat,
               .order = ReductionOrder::Pinned,
               .launch_when_full = when_full,
               .overlaps = overlaps},
              ledger, sink) {}
  void copy_in(std::size_t parameter, uint64_t seed) {
    queue.copy_in(parameter, sample(table[parameter].numel, seed), 1.0);
  }
  at::Tensor sum_of(std::size_t parameter) const {
    const auto where = *plan.slot_of(parameter);
    const auto& slot = plan.slot(where);
    return sink.sums.at(where.bucket).narrow(0, slot.offset, slot.numel);
  }
};

inline const Order kInOrder{0, 1, 2, 3};

}  // namespace equigrad::bucket
