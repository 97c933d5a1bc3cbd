// Queue: a bucket queue of one rank alone, five parameters in four buckets, and what it was asked.
//
// Invariants: what the other ranks say is what the test sets.
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

// One rank alone, which counts what is under way.
class Alone final : public comm::Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  c10::Device device() const override { return c10::kCPU; }
  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    most = std::max(most, ++under_way);
    return std::make_unique<Copy>(*this, output, input);
  }
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    ++under_way;
    return std::make_unique<Copy>(*this, output, input);
  }
  comm::PendingPtr all_reduce_sum(const at::Tensor&) override { throw Error("test", "native"); }
  comm::PendingPtr reduce_scatter_sum(const at::Tensor&, const at::Tensor&) override {
    throw Error("test", "native");
  }
  comm::PendingPtr broadcast(const at::Tensor&, int) override { throw Error("test", "broadcast"); }

  int under_way = 0;
  int most = 0;

 private:
  struct Copy final : comm::Pending {
    Copy(Alone& owner, at::Tensor output, at::Tensor input)
        : owner(owner), output(std::move(output)), input(std::move(input)) {}
    void wait() override {
      output.copy_(input);
      --owner.under_way;
    }
    Alone& owner;
    at::Tensor output, input;
  };
};

// Five parameters in four buckets: p4 | p3 p2 (exactly a bucket) | p1 (larger than one) | p0.
struct Queue {
  bool announces;
  layout::ParameterTable table;
  layout::BucketPlan plan;
  Alone alone;
  trace::Ledger ledger;
  Order delivered, asked;
  bool postpone = false, others_flush = true;  // what the other ranks say
  int64_t rounds_of_others = 0;
  Order announced;
  bool lost = false;  // the answer to what was announced
  std::function<void(bool)> then;
  std::vector<at::Tensor> sums;
  BucketQueue queue;

  explicit Queue(bool when_full, const std::vector<int64_t>& numels = {6, 25, 4, 6, 9},
                 int64_t bucket_size_numel = 10, bool overlaps = true, bool announce = false)
      : announces(announce),
        table(table_of(numels)),
        plan(table, 1, bucket_size_numel),
        sums(plan.buckets().size()),
        queue(
            plan, alone,
            {at::kFloat, at::kFloat, ReductionOrder::Pinned, when_full, {}, 1.0, false, overlaps},
            ledger,
            [this](std::size_t bucket, at::Tensor sum) {
              delivered.push_back(bucket);
              sums[bucket] = sum.clone();
            },
            [this](std::size_t bucket, int64_t rounds) {
              EXPECT_FALSE(then) << "what was announced comes first";
              asked.push_back(bucket);
              if (postpone && rounds == 0) return agreement::Agreement{false, 0, 0, {}};
              return agreement::Agreement{true,
                                          others_flush ? rounds : 0,
                                          others_flush ? std::max(rounds, rounds_of_others) : 0,
                                          {}};
            },
            {}, announcing()) {}
  BucketQueue::Announcing announcing() {
    if (!announces) return {};
    return {[this](std::size_t bucket, std::function<void(bool)> told) {
              EXPECT_FALSE(then);
              announced.push_back(bucket);
              then = std::move(told);
            },
            [this] {
              if (lost) return;
              ASSERT_TRUE(then);
              std::exchange(then, nullptr)(!postpone);
            }};
  }
  void copy_in(std::size_t parameter, uint64_t seed) {
    queue.copy_in(parameter, sample(table[parameter].numel, seed), 1.0);
  }
  at::Tensor sum_of(std::size_t parameter) const {
    const auto where = *plan.slot_of(parameter);
    const auto& slot = plan.slot(where);
    return sums[where.bucket].narrow(0, slot.offset, slot.numel);
  }
};

inline const Order kInOrder{0, 1, 2, 3};

}  // namespace equigrad::bucket
