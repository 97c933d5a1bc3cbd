// Relations 25-29 and 33: sums over ranks, through the engine's own buckets and collectives.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "conformance/oracle/bits.hpp"
#include "conformance/oracle/digest.hpp"
#include "engine/bucket/bucket_queue.hpp"
#include "engine/layout/partition.hpp"
#include "engine/loss/divisors.hpp"
#include "property_tests/numbers.hpp"
#include "property_tests/ranks_of_cases.hpp"
#include "reference/trainer.hpp"

namespace equigrad::property_tests {
namespace {

using conformance::oracle::compare;
using conformance::oracle::describe;
using Tensors = std::vector<at::Tensor>;  // by parameter

at::ScalarType dtype_of(const json& one, const char* key) {
  return one.at(key).get<bool>() ? at::kBFloat16 : at::kFloat;
}

layout::ParameterTable table_of(const std::vector<int64_t>& numels) {
  std::vector<layout::Registration> registrations;
  for (std::size_t i = 0; i < numels.size(); ++i)
    registrations.push_back({"p" + std::to_string(i), &numels[i], {numels[i]}, true, 0});
  return layout::ParameterTable(registrations);
}

// What a rank contributes to every parameter.
Tensors contributions(const json& one, uint64_t rank) {
  const auto numels = one.at("numels").get<std::vector<int64_t>>();
  const uint64_t seed = one.at("seed");
  const std::string data = one.at("data");
  Tensors all;
  for (std::size_t p = 0; p < numels.size(); ++p) {
    const uint64_t stream = p * 16 + (data == "same" ? 0 : rank);
    auto values = data == "integers" ? whole_numbers(seed, stream, numels[p])
                                     : spread(seed, stream, numels[p]);
    if (data == "one" && rank != one.at("only").get<uint64_t>()) values.zero_();
    all.push_back(values.to(dtype_of(one, "bf16")));
  }
  return all;
}

class Slices final : public bucket::SumSink {
 public:
  Slices(const layout::BucketPlan& plan, int rank, Tensors& sums)
      : plan_(plan), rank_(rank), sums_(sums) {}
  at::Tensor block(std::size_t) override { return {}; }
  void add(std::size_t bucket, at::Tensor sum) override {
    for (const auto& slot : plan_.buckets()[bucket].slots) {
      const auto mine = layout::Partition(slot.numel, plan_.shards()).range(rank_);
      sums_[slot.parameter] = sum.narrow(0, slot.offset, mine.numel()).clone();
    }
  }

 private:
  const layout::BucketPlan& plan_;
  int rank_;
  Tensors& sums_;
};

// The slices of the sums that this rank gets (all of them when nothing is sharded).
Tensors reduce(const json& one, RankContext& context, const Tensors& gradients,
               int64_t bucket_size) {
  const auto numels = one.at("numels").get<std::vector<int64_t>>();
  const auto table = table_of(numels);
  const auto group = context.group();
  const int shards = one.at("sharded").get<bool>() ? context.world_size() : 1;
  const layout::BucketPlan plan(table, shards, bucket_size);
  Tensors sums(numels.size());
  Slices sink(plan, shards == 1 ? 0 : context.rank(), sums);
  bucket::QueueOptions options{at::TensorOptions().dtype(dtype_of(one, "bf16")),
                               dtype_of(one, "rounded")};
  options.order = one.at("native").get<bool>() ? ReductionOrder::Native : ReductionOrder::Pinned;
  options.launch_when_full = one.at("when_full");
  memory::Ledger ledger;
  agreement::Participant participant(*group, table.size());
  bucket::BucketQueue queue(plan, participant, options, ledger, sink);
  // Gradients come in another order on every rank.
  std::vector<std::size_t> order(numels.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto key = [&](std::size_t p) {
      return word(one.at("seed"), 999 + static_cast<uint64_t>(context.rank()),
                  static_cast<int64_t>(p));
    };
    return key(a) < key(b);
  });
  for (const std::size_t p : order) queue.copy_in(p, gradients[p], 1.0);
  queue.flush();
  return sums;
}

// `want` is whole; a rank has its slice.
std::string differences(const json& one, RankContext& context, const Tensors& got,
                        const Tensors& want) {
  const int shards = one.at("sharded").get<bool>() ? context.world_size() : 1;
  for (std::size_t p = 0; p < got.size(); ++p) {
    if (want[p].numel() == 0) continue;
    if (!got[p].defined()) return "p" + std::to_string(p) + " was never delivered";
    const auto mine =
        layout::Partition(want[p].numel(), shards).range(shards == 1 ? 0 : context.rank());
    const auto report = compare(got[p], want[p].slice(0, mine.begin, mine.end));
    if (!report.equal()) return "p" + std::to_string(p) + ": " + describe(report);
  }
  return "";
}

// Every rank's contributions, from one place.
Tensors sums_of_the_reference(const json& one, int world) {
  std::vector<Tensors> by_rank;
  for (int rank = 0; rank < world; ++rank)
    by_rank.push_back(contributions(one, static_cast<uint64_t>(rank)));
  Tensors sums;
  for (std::size_t p = 0; p < by_rank[0].size(); ++p) {
    Tensors of_one;
    for (const auto& rank : by_rank) of_one.push_back(rank[p]);
    sums.push_back(reference::sum_contributions({of_one}, reference::SumOrder::ReduceThenAdd,
                                                dtype_of(one, "rounded")));
  }
  return sums;
}

Verdict check_cut(const json& one, RankContext& context) {
  const auto mine = contributions(one, static_cast<uint64_t>(context.rank()));
  const auto first = reduce(one, context, mine, one.at("bucket_size"));
  const auto second = reduce(one, context, mine, one.at("other_bucket_size"));
  for (std::size_t p = 0; p < first.size(); ++p) {
    if (mine[p].numel() == 0) continue;
    const auto report = compare(first[p], second[p]);
    if (!report.equal())
      return {"two bucket sizes, p" + std::to_string(p) + ": " + describe(report)};
  }
  return {differences(one, context, first, sums_of_the_reference(one, context.world_size()))};
}

// All ranks say the same of what they hold: each digest minus that of rank 0 is nothing.
Verdict check_replicas(const json& one, RankContext& context) {
  const auto mine = contributions(one, static_cast<uint64_t>(context.rank()));
  uint64_t digest = 0;
  for (const auto& sum : reduce(one, context, mine, one.at("bucket_size")))
    if (sum.defined()) digest = digest * 31 + conformance::oracle::digest("sum", 0, 0, sum);
  const auto all =
      comm::exchange(*context.group(), at::full({1}, static_cast<int64_t>(digest), at::kLong));
  return {all.eq(static_cast<int64_t>(digest)).all().item<bool>() ? "" : "replicas differ"};
}

// One rank's gradient alone, or the same on all ranks: after the average, exactly g / W, or g.
Verdict check_average(const json& one, RankContext& context) {
  const int world = context.world_size();
  const bool same = one.at("data") == "same";
  const auto mine = contributions(one, static_cast<uint64_t>(context.rank()));
  auto got = reduce(one, context, mine, one.at("bucket_size"));
  auto want = contributions(one, one.at("only"));
  for (std::size_t p = 0; p < got.size(); ++p) {
    want[p] = want[p].to(at::kFloat) / (same ? 1 : world);
    if (got[p].defined()) got[p] = got[p].to(at::kFloat) * loss::averaging_factor({}, 1, world);
  }
  return {differences(one, context, got, want)};
}

Verdict check_integers(const json& one, RankContext& context) {
  const auto mine = contributions(one, static_cast<uint64_t>(context.rank()));
  const auto got = reduce(one, context, mine, one.at("bucket_size"));
  Tensors want;
  for (const auto& tensor : mine) want.push_back(at::zeros_like(tensor, at::kLong));
  for (int rank = 0; rank < context.world_size(); ++rank) {
    const auto theirs = contributions(one, static_cast<uint64_t>(rank));
    for (std::size_t p = 0; p < want.size(); ++p) want[p].add_(theirs[p].to(at::kLong));
  }
  for (auto& tensor : want) tensor = tensor.to(at::kFloat);
  return {differences(one, context, got, want)};
}

// Ranks 2k and 2k + 1 take each other's place.
Verdict check_neighbours(const json& one, RankContext& context) {
  const auto rank = static_cast<uint64_t>(context.rank());
  const auto bucket_size = one.at("bucket_size").get<int64_t>();
  const auto here = reduce(one, context, contributions(one, rank), bucket_size);
  const auto there = reduce(one, context, contributions(one, rank ^ 1), bucket_size);
  for (std::size_t p = 0; p < here.size(); ++p) {
    if (!here[p].defined()) continue;
    const auto report = compare(here[p], there[p]);
    if (!report.equal()) return {"p" + std::to_string(p) + ": " + describe(report)};
  }
  return {};
}

RanksOfCases& ranks() {
  static RanksOfCases all(4, {{"cut", check_cut},
                              {"replicas", check_replicas},
                              {"average", check_average},
                              {"integers", check_integers},
                              {"neighbours", check_neighbours}});
  return all;
}

json any_case(const char* check, std::vector<int> worlds, const char* data = "different") {
  const int parameters = *rc::gen::inRange(1, 7);
  const int world = *rc::gen::elementOf(worlds);
  const bool bf16 = *rc::gen::arbitrary<bool>();
  return {{"check", check},
          {"world", world},
          {"data", data},
          {"numels", *rc::gen::container<std::vector<int64_t>>(
                         static_cast<std::size_t>(parameters),
                         rc::gen::oneOf(rc::gen::inRange<int64_t>(0, 12),
                                        rc::gen::inRange<int64_t>(0, 300)))},
          {"bucket_size", *rc::gen::inRange<int64_t>(1, 400)},
          {"other_bucket_size", *rc::gen::inRange<int64_t>(1, 400)},
          {"sharded", *rc::gen::arbitrary<bool>()},
          {"when_full", *rc::gen::arbitrary<bool>()},
          {"bf16", bf16},
          {"rounded", bf16 && *rc::gen::arbitrary<bool>()},
          {"native", false},
          {"only", *rc::gen::inRange(0, world)},
          {"seed", *rc::gen::noShrink(rc::gen::inRange(0, 1 << 30))}};
}

RC_GTEST_PROP(Reduction, ThePinnedSumIsTheReferencesWhateverTheBucketSize, ()) {
  RC_ASSERT(ranks().wrong(any_case("cut", {1, 2, 3, 4})) == "");
}

RC_GTEST_PROP(Reduction, ReplicasAgreeAfterAPinnedOrNativeSum, ()) {
  json one = any_case("replicas", {2, 3, 4});
  one["sharded"] = false;
  one["native"] = *rc::gen::arbitrary<bool>();
  if (one["native"]) one["rounded"] = one["bf16"];
  RC_ASSERT(ranks().wrong(one) == "");
}

RC_GTEST_PROP(Reduction, OneRanksGradientAloneAveragesToItsShare, ()) {
  RC_ASSERT(ranks().wrong(any_case("average", {1, 2, 4}, "one")) == "");
}

RC_GTEST_PROP(Reduction, TheSameDataOnEveryRankAveragesToOneRanksGradient, ()) {
  json one = any_case("average", {1, 2, 4}, "same");
  RC_ASSERT(ranks().wrong(one) == "");
}

RC_GTEST_PROP(Reduction, SumsOfWholeNumbersAreTheIntegersSums, ()) {
  json one = any_case("integers", {1, 2, 3, 4}, "integers");
  one["rounded"] = false;
  one["native"] = !one["bf16"].get<bool>() && *rc::gen::arbitrary<bool>();
  RC_ASSERT(ranks().wrong(one) == "");
}

RC_GTEST_PROP(Reduction, NeighbouringRanksMayChangePlaces, ()) {
  RC_ASSERT(ranks().wrong(any_case("neighbours", {2, 4})) == "");
}

}  // namespace
}  // namespace equigrad::property_tests
