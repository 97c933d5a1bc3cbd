// The page table: where shards lie, what of a parameter is left after it, and what a refresh
// writes.
#include "engine/parameter/page_table.hpp"

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::parameter {
namespace {

using conformance::sample;
using conformance::table_of;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using memory::Category;

// p2 and p5 are frozen, p5 of integers; p3 is empty.
const std::vector<int64_t> kNumels{7, 12, 5, 0, 1, 4};
const std::vector<std::size_t> kTrained{0, 1, 4};

at::Tensor original(std::size_t i) {
  if (i == 5) return at::arange(4, at::kLong) + 9;
  return sample(kNumels[i], i + 1);
}

struct Tables {
  std::shared_ptr<comm::Communicator> group;
  layout::ParameterTable table = table_of(kNumels, {2, 5});
  layout::BucketPlan plan;
  agreement::Participant participant;
  ZeroConfig zero;
  memory::Ledger ledger;
  std::vector<at::Tensor> tensors;
  at::Tensor masters;
  std::optional<PageTable> pages;

  Tables(RankContext& context, at::ScalarType dtype)
      : group(context.group()),
        plan(table, context.world_size(), 13),
        participant(*group, table.size()) {
    zero.stage3_param_persistence_threshold = 5;
    for (std::size_t i = 0; i < kNumels.size(); ++i) {
      tensors.push_back(original(i).requires_grad_(i != 2 && i != 5));
    }
    tensors[1] = original(1).view({4, 3}).t().requires_grad_();  // not contiguous
    masters = at::zeros({plan.shard_numel()});
    const Context all{.table = table,
                      .plan = plan,
                      .zero = zero,
                      .communicator = *group,
                      .participant = participant,
                      .ledger = ledger,
                      .masters = masters,
                      .tensors = tensors,
                      .dtype = dtype};
    const at::NoGradGuard no_grad;
    fill_masters(all);
    pages.emplace(all);
  }
  const Page& page(std::size_t i) const { return pages->pages()[*pages->page_of(i)]; }
  layout::Partition partition(std::size_t i) const {
    return layout::Partition(kNumels[i], group->world_size());
  }
  // This rank's slice of a flat whole, zeros behind it.
  at::Tensor padded(std::size_t i, const at::Tensor& whole) const {
    const auto mine = partition(i).range(group->rank());
    auto slice = at::zeros({partition(i).shard_numel()}, whole.options());
    slice.narrow(0, 0, mine.numel()).copy_(whole.narrow(0, mine.begin, mine.numel()));
    return slice;
  }
  at::Tensor flat(std::size_t i) const {
    return i == 1 ? original(1).view({4, 3}).t().reshape({-1}) : original(i);
  }
};

template <class Fn>
void for_each_table(Fn fn) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [fn](RankContext& context) {
                         for (const auto dtype : {at::kFloat, at::kBFloat16}) {
                           SCOPED_TRACE(c10::toString(dtype));
                           Tables it(context, dtype);
                           const at::NoGradGuard no_grad;
                           fn(it, dtype);
                         }
                       }),
              "");
  }
}

TEST(PageTable, WhatIsLeftOfAParameterIsItsShard) {
  for_each_table([](Tables& it, at::ScalarType dtype) {
    EXPECT_EQ(it.pages->pages().size(), 5U);
    EXPECT_EQ(it.pages->page_of(3), std::nullopt) << "an empty parameter has no page";
    EXPECT_EQ(it.tensors[3].scalar_type(), dtype);
    for (const std::size_t i : {0U, 1U, 2U, 4U, 5U}) {
      const auto& page = it.page(i);
      const auto of = i == 5 ? at::kLong : dtype;
      EXPECT_TRUE(page.tensor.is_same(it.tensors[i])) << "the model's own tensor";
      EXPECT_EQ(page.resident, i == 2 || i == 4) << "small, persistent, of the type it is sent in";
      EXPECT_EQ(it.tensors[i].storage().data() != nullptr, page.resident) << i;
      EXPECT_EQ(it.tensors[i].scalar_type(), of) << i;
      EXPECT_EQ(it.tensors[i].sizes(), i == 1 ? at::IntArrayRef({3, 4}) : original(i).sizes());
      EXPECT_EQ(it.tensors[i].is_contiguous(), i != 1) << "its strides stay";
      EXPECT_EQ(it.tensors[i].requires_grad(), i != 2 && i != 5);
      EXPECT_TRUE(page.absent());
      EXPECT_EQ(page.persistent, kNumels[i] <= 5) << i;
      EXPECT_EQ(page.bytes, (page.resident ? kNumels[i] : it.partition(i).padded_numel()) *
                                static_cast<int64_t>(c10::elementSize(of)));
      EXPECT_THAT(page.shard, HasTheBitsOf(it.padded(i, it.flat(i)).to(of))) << i;
    }
  });
}

TEST(PageTable, TrainableShardsLieInTheOrderOfTheBucketPlan) {
  for_each_table([](Tables& it, at::ScalarType dtype) {
    const auto& storage = it.page(0).shard.storage();
    for (const auto& bucket : it.plan.buckets()) {
      for (const auto& slot : bucket.slots) {
        const auto& shard = it.page(slot.parameter).shard;
        EXPECT_EQ(shard.storage_offset(), bucket.offset + slot.offset);
        EXPECT_EQ(shard.numel(), slot.shard_numel);
        EXPECT_TRUE(shard.storage().is_alias_of(storage));
      }
    }
    for (const std::size_t i : {2U, 5U}) {
      EXPECT_FALSE(it.page(i).shard.storage().is_alias_of(storage)) << "frozen";
    }
    // In fp32 they are the masters, which costs nothing.
    EXPECT_EQ(it.masters.storage().is_alias_of(storage), dtype == at::kFloat);
    const auto element = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t frozen =
        it.partition(2).shard_numel() * element + it.partition(5).shard_numel() * 8;
    EXPECT_EQ(it.ledger.bytes(Category::Parameters),
              frozen + (dtype == at::kFloat ? 0 : it.plan.shard_numel() * element));
    EXPECT_EQ(it.ledger.bytes(Category::Gathered), 6 * element) << "residents";
  });
}

TEST(PageTable, ARefreshTakesTheMastersRoundedAllOrARange) {
  for_each_table([](Tables& it, at::ScalarType dtype) {
    const auto expect = [&](std::size_t i, double times) {
      const auto want = it.padded(i, it.flat(i)) * at::full({}, times, at::kFloat);
      EXPECT_THAT(it.page(i).shard, HasTheBitsOf(want.to(dtype))) << i << " times " << times;
    };
    it.masters.mul_(1.01);
    if (dtype != at::kFloat) {
      for (const auto i : kTrained) expect(i, 1);  // a copy, until it is refreshed
    }
    const auto where = *it.plan.slot_of(1);
    const auto& slot = it.plan.slot(where);
    it.pages->refresh(it.plan.buckets()[where.bucket].offset + slot.offset, slot.shard_numel);
    expect(1, 1.01);
    for (const std::size_t i : {0U, 4U}) expect(i, dtype == at::kFloat ? 1.01 : 1);
    it.pages->refresh();
    for (const auto i : kTrained) expect(i, 1.01);
    EXPECT_THAT(it.page(2).shard, HasTheBitsOf(it.padded(2, original(2)).to(dtype))) << "frozen";
    EXPECT_THAT(it.page(5).shard, HasTheBitsOf(it.padded(5, original(5)))) << "frozen";
  });
}

}  // namespace
}  // namespace equigrad::parameter
