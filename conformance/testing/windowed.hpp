// Windowed: a gradient window with all it needs, of every kind.
//
// Invariants: what a parameter gets depends on (parameter, pass, rank) only; almost all sums round.
// Shapes: parameters of 5, 0, 7, 1, 12 and 3 elements; slices are padded, [shard_numel].
// Errors: those of the window.   Depends on: engine/window, conformance/ranks.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/gradient/window.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::conformance {

constexpr double kFactor = 1.0F / 7;  // rounds
inline const std::vector<int64_t> kNumels{5, 0, 7, 1, 12, 3};
inline const std::vector<std::size_t> kFilled{0, 2, 3, 4, 5};

struct WindowKind {
  bool each;     // gradients are reduced in every pass
  bool sharded;  // the plan is cut into a slice a rank
  at::ScalarType dtype;
  bool eager = false;  // a first pass sends what is full
};

inline at::Tensor contribution(std::size_t p, uint64_t pass, int rank, at::ScalarType dtype) {
  return sample(kNumels[p], 1000 * pass + 10 * p + static_cast<uint64_t>(rank), dtype);
}

struct Windowed {
  WindowKind kind;
  std::shared_ptr<comm::Communicator> group;
  int rank, world;
  layout::ParameterTable table = table_of(kNumels);
  layout::BucketPlan plan;
  agreement::Participant participant;
  memory::Ledger ledger;
  gradient::Window window;

  Windowed(ranks::RankContext& context, const WindowKind& of)
      : kind(of),
        group(context.group()),
        rank(context.rank()),
        world(context.world_size()),
        plan(table, of.sharded ? world : 1, 10),
        participant(*group, table.size()),
        window(plan, table.size(), participant,
               {.param_dtype = of.dtype,
                .accumulate_dtype = of.dtype,
                .reduce_every_pass = of.each,
                .order = ReductionOrder::Pinned,
                .eager = of.eager},
               ledger) {}

  void ready(std::size_t p, uint64_t pass) {
    window.ready(p, contribution(p, pass, rank, kind.dtype));
  }
  // In an order that is the rank's own.
  void all_ready(uint64_t pass, const std::set<std::size_t>& but = {}) {
    for (std::size_t i = 0; i < kNumels.size(); ++i) {
      const auto p = (i + static_cast<std::size_t>(rank)) % kNumels.size();
      if (but.count(p) == 0) ready(p, pass);
    }
  }
  void begin(double weight) { window.begin(weight, /*expects_step=*/true); }
  at::Tensor take() {
    window.agree(0);
    return window.take_averaged(kFactor);
  }
  void pass(uint64_t number, double weight = 1, const std::set<std::size_t>& but = {}) {
    begin(weight);
    all_ready(number, but);
    window.end();
  }
  at::Tensor slice_of(const at::Tensor& average, std::size_t p) const {
    const auto at = *plan.slot_of(p);
    return average.narrow(0, plan.buckets()[at.bucket].offset + plan.slot(at).offset,
                          plan.slot(at).shard_numel);
  }
  // This rank's padded slice of a whole.
  at::Tensor padded_slice(std::size_t p, const at::Tensor& whole) const {
    const layout::Partition partition(kNumels[p], plan.shards());
    const auto mine = partition.range(plan.shards() == 1 ? 0 : rank);
    auto slice = at::zeros({partition.shard_numel()});
    slice.narrow(0, 0, mine.numel()).copy_(whole.narrow(0, mine.begin, mine.numel()));
    return slice;
  }
  std::vector<at::Tensor> slices_so_far() {
    std::vector<at::Tensor> slices;
    for (const auto p : kFilled) slices.push_back(window.averaged_slice(p, kFactor));
    return slices;
  }
};

template <class Fn>
void for_each_kind(Fn fn, const std::vector<int>& worlds = {1, 2, 3}) {
  for (const int world : worlds) {
    EXPECT_EQ(ranks::on_ranks(world,
                              [fn](ranks::RankContext& context) {
                                for (const auto dtype : {at::kFloat, at::kBFloat16}) {
                                  for (const auto& kind : {WindowKind{false, false, dtype},
                                                           {false, true, dtype},
                                                           {true, true, dtype},
                                                           {false, false, dtype, true},
                                                           {false, true, dtype, true}}) {
                                    const auto text = std::string(c10::toString(dtype)) +
                                                      (kind.each    ? ", every pass"
                                                       : kind.eager ? ", eagerly"
                                                                    : ", at the boundary") +
                                                      (kind.sharded ? ", sharded" : "");
                                    context.note(text);
                                    SCOPED_TRACE(text);
                                    fn(context, kind);
                                  }
                                }
                              }),
              "");
  }
}

}  // namespace equigrad::conformance
