// Relation 35: norm and clipping depend neither on the partition, nor on the number of ranks, nor
// on the order of the elements.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "conformance/oracle/bits.hpp"
#include "engine/layout/partition.hpp"
#include "engine/shard/gradient_shard.hpp"
#include "property_tests/numbers.hpp"
#include "property_tests/ranks_of_cases.hpp"
#include "reference/norm.hpp"

namespace equigrad::property_tests {
namespace {

using conformance::oracle::compare;
using conformance::oracle::describe;

at::Tensor gradient_of(const json& one) {
  const std::string data = one.at("data");
  const auto make = data == "wild" ? wild : data == "tiny" ? tiny : spread;
  return make(one.at("seed"), 0, one.at("numel"));
}

at::Tensor shard_of(const at::Tensor& whole, RankContext& context) {
  const layout::Partition partition(whole.numel(), context.world_size());
  const auto mine = partition.range(context.rank());
  auto shard = at::zeros({partition.shard_numel()});
  shard.narrow(0, 0, mine.numel()).copy_(whole.slice(0, mine.begin, mine.end));
  return shard;
}

double norm_of_the_reference(const at::Tensor& whole) {
  reference::ExactSum sum;
  for (int64_t i = 0; i < whole.numel(); ++i)
    sum.add_square(static_cast<double>(whole.const_data_ptr<float>()[i]));
  return std::sqrt(sum.value());
}

Verdict check_norm(const json& one, RankContext& context) {
  const auto whole = gradient_of(one);
  const double want = norm_of_the_reference(whole);
  const auto group = context.group();
  const auto says = [&](const std::string& who, double got) -> std::string {
    return got == want ? "" : who + " got " + json(got).dump() + ", want " + json(want).dump();
  };
  // Every rank shuffles alike, or the shards would not be of one gradient.
  std::vector<int64_t> order(static_cast<std::size_t>(whole.numel()));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[word(one.at("seed"), 1, static_cast<int64_t>(i)) % i]);
  const auto shuffled = whole.index_select(0, at::tensor(order, at::kLong));
  auto wrong = says("the whole", shard::measure(whole, nullptr).norm);
  if (wrong.empty()) wrong = says("shuffled", shard::measure(shuffled, nullptr).norm);
  const double shards = shard::measure(shard_of(whole, context), group.get()).norm;
  const double moved = shard::measure(shard_of(shuffled, context), group.get()).norm;
  if (wrong.empty()) wrong = says("the shards", shards);
  if (wrong.empty()) wrong = says("the shuffled shards", moved);
  return {wrong};
}

Verdict check_clip(const json& one, RankContext& context) {
  const auto whole = gradient_of(one);
  const double norm = norm_of_the_reference(whole);
  const double threshold = norm * one.at("quarters").get<int>() / 4;
  const auto group = context.group();
  const auto shard = shard_of(whole, context);
  const double factor = shard::clip_(shard, shard::measure(shard, group.get()).norm, threshold);
  if (factor != reference::clip_factor(norm, threshold)) return {"the factor is wrong"};
  auto want = whole.clone();
  if (factor != 1)
    for (int64_t i = 0; i < want.numel(); ++i)
      want.mutable_data_ptr<float>()[i] *= static_cast<float>(factor);
  const auto report = compare(shard, shard_of(want, context));
  return {report.equal() ? "" : describe(report)};
}

RanksOfCases& ranks() {
  static RanksOfCases all(4, {{"norm", check_norm}, {"clip", check_clip}});
  return all;
}

json any_case(const char* check) {
  return {{"check", check},
          {"world", *rc::gen::inRange(1, 5)},
          {"numel",
           *rc::gen::oneOf(rc::gen::inRange<int64_t>(1, 40), rc::gen::inRange<int64_t>(1, 5000))},
          {"data", *rc::gen::element<std::string>("spread", "wild", "tiny")},
          {"quarters", *rc::gen::inRange(1, 9)},
          {"seed", *rc::gen::noShrink(rc::gen::inRange(0, 1 << 30))}};
}

RC_GTEST_PROP(Norm, IsTheReferencesForEveryPartitionAndOrder, ()) {
  RC_ASSERT(ranks().wrong(any_case("norm")) == "");
}

RC_GTEST_PROP(Norm, ClippingMultipliesEveryElementOnceByTheReferencesFactor, ()) {
  RC_ASSERT(ranks().wrong(any_case("clip")) == "");
}

}  // namespace
}  // namespace equigrad::property_tests
