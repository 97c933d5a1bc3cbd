// Relation 23: parameters cut into shards and gathered again are what they were, on any number of
// ranks, at every stage that shards; and padding stays zero.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "conformance/oracle/bits.hpp"
#include "engine/bucket/bucket.hpp"
#include "engine/layout/partition.hpp"
#include "engine/parameter/store.hpp"
#include "property_tests/numbers.hpp"
#include "property_tests/ranks_of_cases.hpp"

namespace equigrad::property_tests {
namespace {

using conformance::oracle::compare;
using conformance::oracle::describe;
using Tensors = std::vector<at::Tensor>;

// Parameters of every size, some of them frozen.
struct Model {
  Tensors values;   // fp32, flat
  Tensors tensors;  // the same, as the model's own leaves
  layout::ParameterTable table;

  explicit Model(const json& one) : values(values_of(one)), tensors(leaves()), table(rows(one)) {}

 private:
  static Tensors values_of(const json& one) {
    Tensors all;
    for (const auto& numel : one.at("numels"))
      all.push_back(wild(one.at("seed"), all.size(), numel.get<int64_t>()));
    return all;
  }
  Tensors leaves() const {
    Tensors all;
    for (const auto& value : values) all.push_back(value.clone());
    return all;
  }
  std::vector<layout::Registration> rows(const json& one) const {
    std::vector<layout::Registration> registrations;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool trainable = one.at("frozen") != i;
      tensors[i].requires_grad_(trainable);
      registrations.push_back(
          {"p" + std::to_string(i), &values[i], {values[i].numel()}, trainable, 0});
    }
    return registrations;
  }
};

std::string padding_is_zero(const layout::BucketPlan& plan, const at::Tensor& flat, int rank) {
  auto rest = flat.clone();
  for (const auto& bucket : plan.buckets())
    for (const auto& slot : bucket.slots) {
      const auto mine = layout::Partition(slot.numel, plan.shards()).range(rank);
      rest.narrow(0, bucket.offset + slot.offset, mine.numel()).zero_();
    }
  return compare(rest, at::zeros_like(rest)).equal() ? "" : "padding is not zero";
}

std::string scattered_and_gathered(const json& one, comm::Communicator& communicator) {
  const Model model(one);
  const bool bf16 = one.at("bf16"), pages = one.at("pages");
  ZeroConfig zero;
  zero.allgather_bucket_size = one.at("gather_size");
  zero.stage3_prefetch_bucket_size = one.at("gather_size");
  zero.stage3_param_persistence_threshold = one.at("persistence");
  const layout::BucketPlan plan(model.table, communicator.world_size(), one.at("bucket_size"));
  memory::Ledger ledger;
  const auto masters = at::zeros({plan.shard_numel()});
  agreement::Participant participant(communicator, model.table.size());
  const parameter::Context context{.table = model.table,
                                   .plan = plan,
                                   .zero = zero,
                                   .communicator = communicator,
                                   .participant = participant,
                                   .ledger = ledger,
                                   .masters = masters,
                                   .tensors = model.tensors,
                                   .dtype = bf16 ? at::kBFloat16 : at::kFloat};
  parameter::fill_masters(context);
  const auto keeper = pages ? parameter::make_pages(context) : parameter::make_replicas(context);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < model.values.size(); ++i) {
      const auto report = compare(keeper->whole(i), model.values[i].to(context.dtype));
      if (!report.equal()) return "p" + std::to_string(i) + ": " + describe(report);
    }
    keeper->publish();
  }
  return padding_is_zero(plan, masters, communicator.rank());
}

// Over all ranks, then over the first few of them: cut for one number, cut anew for another.
Verdict check_gather(const json& one, RankContext& context) {
  const int second = one.at("second_world");
  for (const int world : {context.world_size(), second}) {
    if (context.rank() >= world) continue;
    const auto wrong = scattered_and_gathered(one, *context.group(world));
    if (!wrong.empty()) return {std::to_string(world) + " ranks, " + wrong};
  }
  return {};
}

// A bucket's rows are the shards, its padding is zero, and it gives back what was copied in.
Verdict check_bucket(const json& one, RankContext&) {
  const Model model(one);
  const int shards = one.at("shards");
  const layout::BucketPlan plan(model.table, shards, one.at("bucket_size"));
  for (const auto& place : plan.buckets()) {
    bucket::Bucket bucket(place, shards, one.at("multiple"), at::kFloat);
    for (std::size_t i = 0; i < place.slots.size(); ++i) {
      if (bucket.full()) return {"full before its last parameter"};
      bucket.copy_in(i, model.values[place.slots[i].parameter], 1.0);
    }
    if (!bucket.full()) return {"not full after its last parameter"};
    auto buffer = bucket.buffer().clone();
    const auto matrix = buffer.narrow(0, 0, shards * place.shard_numel).view({shards, -1});
    for (const auto& slot : place.slots) {
      const auto& value = model.values[slot.parameter];
      const auto columns = matrix.narrow(1, slot.offset, slot.shard_numel);
      auto whole = at::full({slot.numel}, NAN);
      parameter::copy_out(columns, whole);
      if (!compare(whole, value).equal()) return {describe(compare(whole, value))};
      const layout::Partition partition(slot.numel, shards);
      for (int rank = 0; rank < shards; ++rank) {
        const auto range = partition.range(rank);
        auto row = columns[rank].narrow(0, 0, range.numel());
        if (!compare(row, value.slice(0, range.begin, range.end)).equal())
          return {"row " + std::to_string(rank) + " is not that rank's shard"};
        row.zero_();
      }
    }
    if (!compare(buffer, at::zeros_like(buffer)).equal()) return {"padding is not zero"};
  }
  return {};
}

RanksOfCases& ranks() {
  static RanksOfCases all(4, {{"gather", check_gather}, {"bucket", check_bucket}});
  return all;
}

json any_case(const char* check, int most_ranks) {
  const int world = *rc::gen::inRange(1, most_ranks + 1);
  const int parameters = *rc::gen::inRange(1, 7);
  return {{"check", check},
          {"world", world},
          {"second_world", *rc::gen::inRange(1, world + 1)},
          {"numels", *rc::gen::container<std::vector<int64_t>>(
                         static_cast<std::size_t>(parameters),
                         rc::gen::oneOf(rc::gen::inRange<int64_t>(0, 12),
                                        rc::gen::inRange<int64_t>(0, 300)))},
          {"frozen", *rc::gen::inRange(0, 2 * parameters)},
          {"bucket_size", *rc::gen::inRange<int64_t>(1, 400)},
          {"gather_size", *rc::gen::inRange<int64_t>(1, 400)},
          {"persistence", *rc::gen::inRange<int64_t>(0, 100)},
          {"bf16", *rc::gen::arbitrary<bool>()},
          {"pages", false},
          {"seed", *rc::gen::noShrink(rc::gen::inRange(0, 1 << 30))}};
}

RC_GTEST_PROP(Gather, ReplicasAreTheParametersThatWereCutIntoShards, ()) {
  RC_ASSERT(ranks().wrong(any_case("gather", 4)) == "");
}

RC_GTEST_PROP(Gather, PagesAreTheParametersThatWereCutIntoShards, ()) {
  json one = any_case("gather", 4);
  one["pages"] = true;
  RC_ASSERT(ranks().wrong(one) == "");
}

RC_GTEST_PROP(Gather, ABucketHoldsShardsInItsRowsAndZerosBesides, ()) {
  json one = any_case("bucket", 1);
  one["shards"] = *rc::gen::inRange(1, 9);
  one["multiple"] = *rc::gen::inRange(1, 9);
  RC_ASSERT(ranks().wrong(one) == "");
}

}  // namespace
}  // namespace equigrad::property_tests
