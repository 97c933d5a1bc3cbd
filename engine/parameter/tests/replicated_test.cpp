// Whole parameters on every rank: where they lie, and what publish() writes into them.
#include "conformance/faults/adversary.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/parameter/store.hpp"

namespace equigrad::parameter {
namespace {

using conformance::sample;
using conformance::table_of;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

const std::vector<int64_t> kNumels{7, 12, 5, 0, 6};  // p2 is frozen, p3 empty

struct Model {
  std::shared_ptr<comm::Communicator> group;
  layout::ParameterTable table;
  layout::BucketPlan plan;
  agreement::Participant participant;
  ZeroConfig zero;
  memory::Ledger ledger;
  std::vector<at::Tensor> tensors;
  at::Tensor masters;
  std::unique_ptr<Parameters> keeper;

  Model(RankContext& context, bool sharded, at::ScalarType dtype, int64_t gather_size = 10)
      : Model(context.group(), kNumels, sharded, dtype, gather_size) {}
  Model(std::shared_ptr<comm::Communicator> ranks, const std::vector<int64_t>& numels, bool sharded,
        at::ScalarType dtype, int64_t gather_size)
      : group(std::move(ranks)),
        table(table_of(numels, {2})),
        plan(table, sharded ? group->world_size() : 1, 13),
        participant(*group, table.size()) {
    zero.allgather_bucket_size = gather_size;
    for (std::size_t i = 0; i < numels.size(); ++i)
      tensors.push_back(sample(numels[i], i).requires_grad_(i != 2));
    // A parameter that is not contiguous.
    if (numels[1] == 12) tensors[1] = sample(12, 1).view({3, 4}).t().requires_grad_();
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
    keeper = make_replicas(all);
  }
};

at::Tensor original(std::size_t i) {
  return i == 1 ? sample(12, 1).view({3, 4}).t().contiguous() : sample(kNumels[i], i);
}

TEST(Replicas, ParametersHaveAlignedMemoryOfTheirOwn) {
  EXPECT_EQ(
      on_ranks(1,
               [](RankContext& context) {
                 const Model it(context, false, at::kFloat);
                 const at::NoGradGuard no_grad;
                 for (const std::size_t i : std::vector<std::size_t>{0, 1, 4}) {
                   EXPECT_FALSE(it.tensors[i].storage().is_alias_of(it.masters.storage()));
                   // The bits of a matrix product depend on where its operands lie.
                   EXPECT_EQ(reinterpret_cast<uintptr_t>(it.tensors[i].const_data_ptr()) % 64, 0U);
                   EXPECT_EQ(it.tensors[i].is_contiguous(), i != 1) << "its strides stay";
                 }
                 EXPECT_EQ(it.ledger.bytes(memory::Category::Parameters), 4 * (7 + 12 + 5 + 6));
               }),
      "");
}

TEST(Replicas, PublishRoundsTheMastersOfAllRanksToTheParameterDtype) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         const at::NoGradGuard no_grad;
                         for (const bool sharded : {false, true}) {
                           for (const auto dtype : {at::kFloat, at::kBFloat16}) {
                             for (const int64_t gather_size : {1, 10, 1000}) {
                               Model it(context, sharded, dtype, gather_size);
                               for (const std::size_t i : std::vector<std::size_t>{0, 1, 4}) {
                                 EXPECT_THAT(it.tensors[i], HasTheBitsOf(original(i).to(dtype)));
                               }
                               it.masters.mul_(1.01);
                               it.keeper->publish();
                               for (const std::size_t i : std::vector<std::size_t>{0, 1, 4}) {
                                 const auto want = (original(i) * 1.01).to(dtype);
                                 EXPECT_THAT(it.tensors[i], HasTheBitsOf(want));
                                 EXPECT_THAT(it.keeper->whole(i), HasTheBitsOf(want));
                               }
                               EXPECT_THAT(it.tensors[2], HasTheBitsOf(original(2).to(dtype)));
                               EXPECT_EQ(it.ledger.bytes(memory::Category::Gathered), 0);
                             }
                           }
                         }
                       }),
              "");
  }
}

// Shards that fill a large parameter are received in it; those that do not are copied out, with the
// small ones beside them.
TEST(Replicas, ALargeParameterIsGatheredInItsOwnMemory) {
  constexpr int64_t large = 6 * layout::kAloneNumel;
  for (const int world : {2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         const at::NoGradGuard no_grad;
                         const std::vector<int64_t> numels{5, large, 9, 7, large + 1, large};
                         for (const auto dtype : {at::kFloat, at::kBFloat16}) {
                           // A backend's own writes are none that autograd counts.
                           const bool is_late = dtype == at::kFloat;
                           const auto communicator =
                               is_late ? conformance::faults::adversarial(context.group(), 5)
                                       : context.group();
                           Model it(communicator, numels, true, dtype, 4 * large);
                           const auto check = [&](double factor) {
                             for (const std::size_t i : std::vector<std::size_t>{0, 1, 3, 4, 5})
                               EXPECT_THAT(it.tensors[i],
                                           HasTheBitsOf((sample(numels[i], i) * factor).to(dtype)));
                           };
                           check(1.0);
                           const auto version = it.tensors[1]._version();
                           const auto* place = it.tensors[1].const_data_ptr();
                           it.masters.mul_(1.25);
                           it.keeper->publish();
                           check(1.25);
                           EXPECT_GT(it.tensors[1]._version(), version);
                           EXPECT_EQ(it.tensors[1].const_data_ptr(), place);
                           const auto block =
                               (large + 30) * static_cast<int64_t>(c10::elementSize(dtype));
                           EXPECT_LT(it.ledger.peak_bytes(memory::Category::Gathered), block);
                           it.masters.mul_(0.5);
                           for (const std::size_t i : std::vector<std::size_t>{0, 1, 3, 4, 5})
                             it.keeper->publish(i, {});
                           check(0.625);
                         }
                       }),
              "");
  }
}

TEST(Replicas, MastersKeepWhatRoundingTheParametersLoses) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       const Model it(context, false, at::kBFloat16);
                       const auto slot = it.plan.slot(*it.plan.slot_of(0));
                       const auto offset =
                           it.plan.buckets()[it.plan.slot_of(0)->bucket].offset + slot.offset;
                       EXPECT_THAT(it.masters.narrow(0, offset, 7), HasTheBitsOf(original(0)));
                     }),
            "");
}

TEST(Replicas, AGraphFromBeforeAPublishCannotBeUsedAfterIt) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(on_ranks(1,
                       [dtype](RankContext& context) {
                         Model it(context, false, dtype);
                         const auto loss = (it.tensors[0] * it.tensors[0]).sum();
                         {
                           const at::NoGradGuard no_grad;
                           it.keeper->publish();
                         }
                         EXPECT_THROW(loss.backward(), c10::Error);
                       }),
              "");
  }
}

TEST(Replicas, AWholeParameterIsACopy) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       Model it(context, false, at::kFloat);
                       it.keeper->whole(0).zero_();
                       EXPECT_THAT(it.keeper->whole(0), HasTheBitsOf(original(0)));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::parameter
