// Pages: whole parameters are there while an operator needs them and at no other time, whichever
// ranks need them, and what happens when a gather fails.
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/paged_model.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"

namespace equigrad::parameter {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using Model = PagedModel;

at::Tensor cycle_without_pages(at::ScalarType dtype) {
  auto input = sample(kDim, 50).view({1, kDim}).requires_grad_();
  auto x = input;
  for (int64_t i = 0; i < kLayers; ++i) {
    x = at::tanh(at::mm(x, original(i).to(dtype).to(at::kFloat)));
  }
  x.sum().backward();
  return input.grad();
}

TEST(Pages, BetweenUsesTheStorageIsEmptyAndAnAccessFails) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Model it(context);
                       EXPECT_FALSE(it.here(0));
                       EXPECT_EQ(it.tensors[0].sizes(), (std::vector<int64_t>{kDim, kDim}));
                       EXPECT_THROW(it.tensors[0].const_data_ptr<float>(), c10::Error);
                       EXPECT_THAT(at::mul(it.tensors[0].detach(), 2),
                                   HasTheBitsOf(original(0) * 2));
                       it.keeper->end_of_pass();
                       EXPECT_FALSE(it.here(0));
                       EXPECT_EQ(it.gathered(), 0);
                     }),
            "");
}

TEST(Pages, ThoseThatStayWholeAreNotWatched) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       ZeroConfig zero;
                       zero.stage3_param_persistence_threshold = kDim * kDim;
                       Model it(context, zero);
                       EXPECT_FALSE(at::hasGlobalCallbacks());
                       for (int cycle = 0; cycle < 2; ++cycle) {
                         EXPECT_THAT(it.cycle(), HasTheBitsOf(cycle_without_pages(at::kFloat)));
                         EXPECT_TRUE(it.here(0));
                       }
                       zero.stage3_param_persistence_threshold -= 1;
                       const Model other(context, zero);
                       EXPECT_TRUE(at::hasGlobalCallbacks());
                     }),
            "");
}

TEST(Pages, OperatorsOfForwardAndBackwardComputeWithTheWhole) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         for (const auto dtype : {at::kFloat, at::kBFloat16}) {
                           Model it(context, Model::none_persistent(), dtype);
                           const auto want = cycle_without_pages(dtype);
                           // The first cycle is learnt, the others prefetch.
                           for (int cycle = 0; cycle < 3; ++cycle) {
                             EXPECT_THAT(it.cycle(), HasTheBitsOf(want));
                             EXPECT_EQ(it.gathered(), 0);
                           }
                         }
                       }),
              "");
  }
}

TEST(Pages, NoMoreThanAFewPagesAreGatheredAtATime) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Model first(context);
                       first.cycle();
                       EXPECT_LT(first.ledger.peak_bytes(memory::Category::Gathered),
                                 kLayers * kPageBytes);
                       // With a trace: at most the limit, the operator's own page, and its round's
                       // buffer.
                       for (const int64_t limit : {1, 3}) {
                         auto zero = Model::none_persistent();
                         zero.stage3_max_live_parameters = limit * kDim * kDim;
                         zero.stage3_prefetch_bucket_size = 2 * kDim * kDim;
                         Model limited(context, zero);
                         const auto want = cycle_without_pages(at::kFloat);
                         for (int cycle = 0; cycle < 3; ++cycle) {
                           EXPECT_THAT(limited.cycle(), HasTheBitsOf(want));
                         }
                         const int64_t padded = 2 * ((kDim * kDim + 1) / 2) * 4;
                         EXPECT_LE(limited.ledger.peak_bytes(memory::Category::Gathered),
                                   (2 * limit + 2) * padded)
                             << limit;
                       }
                     }),
            "");
}

// Of pages of one size; however far ahead they are fetched.
TEST(Pages, OnceLearntNoMoreIsGatheredThanAnyScheduleMust) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       constexpr int64_t kPage = kDim * kDim;
                       for (const int64_t limit : {1, 2, 3, 5, 8})
                         for (const int64_t ahead : {0, 1, 2, 8}) {
                           auto zero = Model::none_persistent();
                           zero.stage3_max_live_parameters = limit * kPage;
                           zero.stage3_prefetch_bucket_size = ahead * kPage;
                           Model it(context, zero);
                           for (int cycle = 0; cycle < 3; ++cycle) it.cycle();
                           const int64_t least_numel = it.traffic.least_numel;
                           EXPECT_EQ(least_numel, (2 * kLayers - limit) * kPage) << limit;
                           EXPECT_EQ(it.traffic.planned_numel, least_numel) << limit;
                           EXPECT_EQ(it.traffic.gathered_numel, least_numel) << ahead;
                         }
                     }),
            "");
}

TEST(Pages, WhatIsGatheredAheadIsUnderWayOnlyIfCommunicationOverlaps) {
  for (const bool overlaps : {true, false}) {
    EXPECT_EQ(on_ranks(2,
                       [overlaps](RankContext& context) {
                         auto zero = Model::none_persistent();
                         zero.stage3_prefetch_bucket_size = 2 * kDim * kDim;
                         zero.overlap_comm = overlaps;
                         Model it(context, zero);
                         for (int cycle = 0; cycle < 3; ++cycle) {
                           int most = 0;
                           for (std::size_t layer = 0; layer < kLayers; ++layer) {
                             EXPECT_THAT(at::mul(it.tensors[layer].detach(), 3),
                                         HasTheBitsOf(original(static_cast<int64_t>(layer)) * 3));
                             most = std::max(most, it.communicator.under_way);
                           }
                           EXPECT_EQ(most > 0, overlaps && cycle > 0);
                           EXPECT_TRUE(it.participant.meet(agreement::Step{}).together);
                           it.keeper->end_of_pass();
                         }
                       }),
              "");
  }
}

// A forward whose backward has not come yet may be gathering ahead when a step writes masters.
TEST(Pages, OnceSettledNothingReadsMasters) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       auto zero = Model::none_persistent();
                       zero.stage3_prefetch_bucket_size = 2 * kDim * kDim;
                       Model it(context, zero);
                       int most = 0;
                       for (int cycle = 0; cycle < 2; ++cycle) {
                         for (const auto& tensor : it.tensors) {
                           at::mul(tensor.detach(), 3);
                           most = std::max(most, it.communicator.under_way);
                           it.keeper->settle();
                           EXPECT_EQ(it.communicator.under_way, 0);
                         }
                         EXPECT_TRUE(it.participant.meet(agreement::Step{}).together);
                         it.keeper->end_of_pass();
                       }
                       EXPECT_GT(most, 0);
                     }),
            "");
}

TEST(Pages, PersistentPagesStay) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       ZeroConfig zero;
                       zero.stage3_param_persistence_threshold = kDim * kDim;
                       Model it(context, zero);
                       const int64_t held = it.gathered();
                       EXPECT_GE(held, kLayers * kPageBytes);
                       it.cycle();
                       EXPECT_TRUE(it.here(0));
                       EXPECT_EQ(it.gathered(), held);
                       it.masters.mul_(2);
                       it.keeper->publish();
                       EXPECT_THAT(it.tensors[0].detach() + 0, HasTheBitsOf(original(0) * 2));
                       EXPECT_EQ(it.gathered(), held);
                     }),
            "");
}

TEST(Pages, WholeIsACopyOfTheParameterRoundedToItsDtype) {
  for (const int world : {1, 3}) {
    EXPECT_EQ(
        on_ranks(world,
                 [](RankContext& context) {
                   for (const auto dtype : {at::kFloat, at::kBFloat16}) {
                     Model it(context, Model::none_persistent(), dtype);
                     EXPECT_THAT(it.keeper->whole(1), HasTheBitsOf(original(1).to(dtype)));
                     EXPECT_THAT(it.keeper->whole(3), HasTheBitsOf(original(3).to(dtype)))
                         << "frozen";
                     it.masters.mul_(1.5);
                     it.keeper->publish();
                     EXPECT_THAT(it.keeper->whole(1), HasTheBitsOf((original(1) * 1.5).to(dtype)));
                     it.keeper->whole(1).zero_();
                     EXPECT_THAT(it.keeper->whole(1), HasTheBitsOf((original(1) * 1.5).to(dtype)));
                     EXPECT_EQ(it.gathered(), 0);
                   }
                 }),
        "");
  }
}

TEST(Pages, AGraphFromBeforeAPublishCannotBeUsedAfterIt) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Model it(context);
                       auto loss = (it.tensors[0] * it.tensors[0]).sum();
                       loss.backward({}, /*retain_graph=*/true);
                       it.keeper->publish();
                       EXPECT_THROW(loss.backward(), c10::Error);
                       it.keeper->end_of_pass();
                     }),
            "");
}

TEST(Pages, RanksMayTakeDifferentBranches) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Model it(context);
                       const auto rank = static_cast<int64_t>(context.rank());
                       for (int64_t round = 0; round < 4; ++round) {
                         // Rank 0 uses one matrix, rank 1 two others, rank 2 none in even rounds.
                         for (int64_t use = 0; use < (round % 2 == 0 ? 2 - rank : rank); ++use) {
                           const int64_t layer = (3 * rank + 2 * use + round) % kLayers;
                           EXPECT_THAT(
                               at::mul(it.tensors[static_cast<std::size_t>(layer)].detach(), 3),
                               HasTheBitsOf(original(layer) * 3));
                         }
                         EXPECT_TRUE(it.participant.meet(agreement::Step{}).together);
                         it.keeper->end_of_pass();
                       }
                       EXPECT_EQ(it.gathered(), 0);
                     }),
            "");
}

TEST(Pages, AGatherThatFailsIsReadAsNanAndToldAtTheNextCall) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Model it(context);
                       it.communicator.cut = true;
                       testing::internal::CaptureStderr();
                       const auto read = at::mul(it.tensors[0].detach(), 2);
                       at::mul(it.tensors[0].detach(), 2);
                       const auto said = testing::internal::GetCapturedStderr();
                       EXPECT_THAT(said, testing::HasSubstr("reads as NaN"));
                       EXPECT_THAT(said, testing::HasSubstr("[test] communication is cut"));
                       EXPECT_EQ(said.find("equigrad: "), said.rfind("equigrad: ")) << "once";
                       EXPECT_TRUE(read.isnan().all().item<bool>());
                       EXPECT_EQ(error_of([&] { it.keeper->rethrow_failure(); }),
                                 "[test] communication is cut");
                       EXPECT_EQ(error_of([&] { it.keeper->rethrow_failure(); }), "")
                           << "told once";
                       it.communicator.cut = false;
                       it.keeper->end_of_pass();
                       EXPECT_EQ(it.gathered(), 0);
                       EXPECT_THAT(it.cycle(), HasTheBitsOf(cycle_without_pages(at::kFloat)));
                     }),
            "");
}

TEST(Pages, ThoseThatStayWholeAreNanWhenTheirGatherHasFailed) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Model it(context, ZeroConfig{});
                       const auto read = [&] { return at::mul(it.tensors[0].detach(), 2); };
                       it.communicator.cut = true;
                       EXPECT_EQ(error_of([&] { it.keeper->publish(); }),
                                 "[test] communication is cut");
                       EXPECT_TRUE(read().isnan().all().item<bool>());
                       it.communicator.cut = false;
                       it.keeper->publish();
                       EXPECT_THAT(read(), HasTheBitsOf(original(0) * 2));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::parameter
