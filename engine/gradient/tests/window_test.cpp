// The window as its header says it: what it adds up, in which order and with which weights; a pass
// that is abandoned; a parameter that is ready twice; what is assigned.
#include "engine/gradient/window.hpp"

#include "conformance/testing/window_sums.hpp"
#include "conformance/testing/windowed.hpp"

namespace equigrad::gradient {
namespace {

using conformance::average_of;
using conformance::error_of;
using conformance::for_each_kind;
using conformance::kFactor;
using conformance::kFilled;
using conformance::kNumels;
using conformance::sample;
using conformance::Weighed;
using conformance::Windowed;
using conformance::WindowKind;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::HasSubstr;

TEST(Window, AveragesWhatEveryPassOfEveryRankDelivered) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    Windowed it(context, kind);
    const std::vector<Weighed> passes{{1}, {2}, {3, 3.0}, {4, 0.3125}, {5}};
    for (const auto& pass : passes) it.pass(pass.pass, pass.weight);
    EXPECT_EQ(it.window.progress().passes, 5);
    // One slice so far is the same, and reading it changes nothing.
    const auto slices = it.slices_so_far();
    EXPECT_EQ(it.window.progress().passes, 5);
    const auto average = it.take();
    EXPECT_EQ(average.scalar_type(), at::kFloat);
    ASSERT_EQ(average.numel(), it.plan.shard_numel());
    std::size_t next = 0;
    for (const auto p : kFilled) {
      const auto want = average_of(it, p, passes);
      EXPECT_THAT(it.slice_of(average, p), HasTheBitsOf(want)) << p;
      EXPECT_THAT(slices[next++], HasTheBitsOf(want)) << p;
    }
  });
}

TEST(Window, AnAbandonedPassLeavesTheWindowAsItWas) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    Windowed it(context, kind), plain(context, kind);
    for (uint64_t pass = 1; pass <= 3; ++pass) {
      const auto slices = it.slices_so_far();
      const auto used = it.window.progress().used;
      const auto held = it.ledger.total_bytes();
      // Halfway, with a weight of its own; then with everything delivered, some of it twice.
      for (const bool halfway : {true, false}) {
        it.begin(3.0);
        // The last buckets are full, so where passes are reduced they have been sent.
        for (const std::size_t p : {5U, 4U}) it.ready(p, 50 + pass);
        if (!halfway) it.all_ready(60 + pass);
        it.window.abandon(WindowPart::Pass);
        EXPECT_EQ(it.window.progress().passes, static_cast<int64_t>(pass) - 1);
        EXPECT_EQ(it.window.progress().used, used);
        EXPECT_EQ(it.ledger.total_bytes(), held);
        const auto after = it.slices_so_far();
        for (std::size_t i = 0; i < slices.size(); ++i) {
          EXPECT_THAT(after[i], HasTheBitsOf(slices[i])) << i;
        }
      }
      it.pass(pass, 1, {4});
      plain.pass(pass, 1, {4});
    }
    EXPECT_EQ(it.window.progress().used, plain.window.progress().used);
    EXPECT_THAT(it.take(), HasTheBitsOf(plain.take()));
    it.window.abandon(WindowPart::All);
    EXPECT_EQ(it.ledger.total_bytes(), 0);
  });
}

TEST(Window, WhatIsReadyAgainInOnePassIsAddedInOrderOfArrival) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    Windowed it(context, kind);
    it.pass(1);
    it.begin(3.0);
    // p2 comes twice on all ranks, p4 three times on rank 0, once on the others; the k-th ones are
    // added up over the ranks, whatever came between.
    if (it.rank == 1) it.ready(2, 2);
    it.all_ready(2, it.rank == 1 ? std::set<std::size_t>{2} : std::set<std::size_t>{});
    if (it.rank == 0) it.ready(4, 3);
    it.ready(2, 3);
    if (it.rank == 0) it.ready(4, 4);
    it.window.end();
    EXPECT_EQ(it.window.progress().passes, 2);
    it.pass(5);
    const auto average = it.take();
    EXPECT_THAT(it.slice_of(average, 0), HasTheBitsOf(average_of(it, 0, {{1}, {2, 3.0}, {5}})));
    EXPECT_THAT(it.slice_of(average, 2),
                HasTheBitsOf(average_of(it, 2, {{1}, {2, 3.0}, {3, 3.0}, {5}})));
    EXPECT_THAT(it.slice_of(average, 4),
                HasTheBitsOf(average_of(it, 4, {{1}, {2, 3.0}, {3, 3.0, 1}, {4, 3.0, 1}, {5}})));
  });
}

// It waits until its pass ends: whoever has it may write to it until the step.
TEST(Window, AGradientOfALaterPassIsCopied) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    Windowed it(context, kind);
    it.pass(1, 1, {4});
    it.begin(1);
    auto gradient = conformance::contribution(4, 2, it.rank, kind.dtype);
    const auto same_memory = gradient.variable_data();
    it.window.ready(4, std::move(gradient));
    it.window.end();
    same_memory.fill_(std::nan(""));
    EXPECT_THAT(it.slice_of(it.take(), 4), HasTheBitsOf(average_of(it, 4, {{2}})));
  });
}

TEST(Window, WhatWasAssignedStandsForTheWindowSoFar) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    Windowed it(context, kind);
    const auto value = [&](std::size_t p, uint64_t seed) {
      return it.padded_slice(p, sample(kNumels[p], seed));
    };
    it.window.assign(3, value(3, 91));  // before any pass
    EXPECT_THAT(it.window.averaged_slice(3, kFactor), HasTheBitsOf(value(3, 91)));
    it.pass(1);
    it.pass(2);
    for (const std::size_t p : {0U, 4U, 5U}) {
      auto given = value(p, 92);
      it.window.assign(p, given);
      given.zero_();
      EXPECT_THAT(it.window.averaged_slice(p, kFactor), HasTheBitsOf(value(p, 92)));
    }
    it.pass(3, 1, {5});
    it.window.assign(4, value(4, 93));
    const auto at_0 = average_of(it, 0, {{3}}) + value(0, 92);
    EXPECT_THAT(it.window.averaged_slice(0, kFactor), HasTheBitsOf(at_0));
    const auto average = it.take();
    EXPECT_THAT(it.slice_of(average, 0), HasTheBitsOf(at_0)) << "the later pass is added";
    EXPECT_THAT(it.slice_of(average, 3),
                HasTheBitsOf(average_of(it, 3, {{1}, {2}, {3}}) + value(3, 91)));
    EXPECT_THAT(it.slice_of(average, 4), HasTheBitsOf(value(4, 93))) << "assigned again";
    EXPECT_THAT(it.slice_of(average, 5), HasTheBitsOf(value(5, 92)));
    EXPECT_THAT(it.slice_of(average, 2), HasTheBitsOf(average_of(it, 2, {{1}, {2}, {3}})));
  });
}

TEST(Window, AParameterIsUsedIfAnyRankUsedItOrItWasAssigned) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    Windowed it(context, kind);
    const bool last = it.rank == it.world - 1;
    it.pass(1, 1, last ? std::set<std::size_t>{2, 4} : std::set<std::size_t>{2, 4, 5});
    it.pass(2, 1, {0, 1, 2, 3, 4, 5});
    it.window.assign(4, it.padded_slice(4, sample(12, 1)));
    EXPECT_EQ(it.window.progress().used, (std::vector<bool>{true, true, false, true, true, last}));
    EXPECT_EQ(it.window.agree(false).marks,
              (std::vector<bool>{true, true, false, true, true, true}));
  });
}

TEST(Window, RanksThatRanDifferentNumbersOfPassesAreTold) {
  for (const int world : {2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         Windowed it(context, {false, false, at::kFloat});
                         it.pass(1);
                         if (it.rank == 1) it.pass(2);
                         EXPECT_THAT(error_of([&] { it.window.agree(false); }),
                                     HasSubstr("rank 1 at step() of engine 0 after 2 backward"));
                         if (it.rank != 1) it.pass(2);
                         EXPECT_TRUE(it.window.agree(false).marks[0]) << "nothing was lost";
                       }),
              "");
  }
}

TEST(Window, ClearingOrTakingItBeginsANewOne) {
  for_each_kind(
      [](RankContext& context, const WindowKind& kind) {
        for (const bool take : {false, true}) {
          Windowed it(context, kind), plain(context, kind);
          it.pass(1, 3.0);
          it.pass(2);
          it.window.assign(2, it.padded_slice(2, sample(7, 9)));
          take ? void(it.take()) : it.window.abandon(WindowPart::All);
          EXPECT_EQ(it.window.progress().passes, 0) << take;
          EXPECT_EQ(it.window.progress().used, std::vector<bool>(kNumels.size(), false)) << take;
          EXPECT_EQ(it.ledger.total_bytes(), 0) << take;
          for (const auto& slice : it.slices_so_far()) {
            EXPECT_THAT(slice, HasTheBitsOf(at::zeros_like(slice))) << take;
          }
          for (uint64_t pass = 3; pass < 5; ++pass) {
            it.pass(pass);
            plain.pass(pass);
          }
          EXPECT_THAT(it.take(), HasTheBitsOf(plain.take())) << take;
        }
      },
      {2});
}

}  // namespace
}  // namespace equigrad::gradient
