// In the exact order the window's average is the reference's sum of all contributions, whatever
// stage, number of ranks, passes and their weights made of them.
#include <gmock/gmock.h>

#include "conformance/testing/window_sums.hpp"
#include "conformance/testing/windowed.hpp"
#include "reference/sum.hpp"

namespace equigrad::gradient {
namespace {

using conformance::average_of;
using conformance::contribution;
using conformance::error_of;
using conformance::for_each_kind;
using conformance::kFactor;
using conformance::kFilled;
using conformance::kNumels;
using conformance::Windowed;
using conformance::WindowKind;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

// A pass's contributions to one parameter; `parts` of them, as reentrant checkpointing gives.
struct Given {
  uint64_t pass;
  double weight = 1;
  int ranks = 100;  // the first so many contribute
};

struct Exact : Windowed {
  Window exact;
  Exact(RankContext& context, const WindowKind& of, bool expects_one_pass)
      : Windowed(context, of),
        exact(plan, table.size(), participant,
              {of.dtype,
               at::kFloat,
               of.each,
               ReductionOrder::Exact,
               at::kFloat,
               {},
               1.0,
               expects_one_pass},
              ledger) {}
  void give(const Given& given, std::size_t but = 99) {
    exact.begin(given.weight, /*expects_step=*/false);
    for (std::size_t i = 0; i < kNumels.size(); ++i) {
      const auto p = (i + static_cast<std::size_t>(rank)) % kNumels.size();
      if (p != but && rank < given.ranks)
        exact.ready(p, contribution(p, given.pass, rank, kind.dtype));
    }
    exact.end();
  }
  at::Tensor want(std::size_t p, const std::vector<Given>& all) const {
    reference::Contributions made;
    std::vector<double> weights;
    for (const auto& given : all) {
      made.emplace_back();
      weights.push_back(given.weight);
      for (int r = 0; r < world; ++r) {
        const auto one = contribution(p, given.pass, r, kind.dtype);
        made.back().push_back(r < given.ranks ? one : at::zeros_like(one));
      }
    }
    const auto sum =
        reference::sum_contributions(made, reference::SumOrder::ExactGrid, at::kFloat, weights);
    return padded_slice(p, sum * at::full({}, kFactor, at::kFloat));
  }
  void expect(const std::vector<Given>& all) {
    for (const auto p : kFilled)
      EXPECT_THAT(exact.averaged_slice(p, kFactor), HasTheBitsOf(want(p, all))) << "so far, " << p;
    const auto average = exact.take_averaged(kFactor);
    for (const auto p : kFilled) EXPECT_THAT(slice_of(average, p), HasTheBitsOf(want(p, all))) << p;
    EXPECT_EQ(ledger.bytes(memory::Category::Buckets), 0);
    EXPECT_EQ(ledger.bytes(memory::Category::Gradients), 0);
  }
};

TEST(WindowExact, IsTheReferencesSumOfAllContributions) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    const std::vector<std::vector<Given>> windows = {
        {{1}}, {{1}, {2}}, {{1}, {2, 3.0}, {3, 1.0 / 3}}, {{1, 3.0}}, {{1}, {2, 1.0, 1}}, {{4}}};
    for (const bool expects_one :
         {true, false}) {  // sums are held from the second pass on, or the first
      Exact it(context, kind, expects_one);
      for (const auto& window : windows) {
        for (const auto& given : window) it.give(given);
        it.expect(window);
      }
    }
  });
}

TEST(WindowExact, IsNotTheSumInThePinnedOrder) {
  for_each_kind(
      [](RankContext& context, const WindowKind& kind) {
        if (kind.dtype != at::kFloat || kind.sharded) return;
        Exact it(context, kind, true);
        for (const uint64_t pass : {1u, 2u, 3u}) it.give({pass});
        const auto average = it.exact.take_averaged(kFactor);
        int64_t differing = 0;
        for (const auto p : kFilled)
          differing +=
              it.slice_of(average, p).ne(average_of(it, p, {{1}, {2}, {3}})).sum().item<int64_t>();
        EXPECT_GT(differing, 0);
      },
      {3});
}

// One rank's pass gives a parameter a second part: only this rank holds sums.
TEST(WindowExact, RanksAgreeOnWhatTravels) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    Exact it(context, kind, true);
    constexpr std::size_t p = 4;
    const auto part = contribution(p, 9, 0, kind.dtype);
    it.exact.begin(1.0, /*expects_step=*/false);
    for (const auto other : kFilled)
      it.exact.ready(other, contribution(other, 1, it.rank, kind.dtype));
    if (it.rank == it.world - 1) it.exact.ready(p, part);
    it.exact.end();
    reference::Contributions made(1);
    for (int r = 0; r < it.world; ++r) made[0].push_back(contribution(p, 1, r, kind.dtype));
    made[0].push_back(part);
    const auto sum = reference::sum_contributions(made, reference::SumOrder::ExactGrid, at::kFloat);
    const auto want = it.padded_slice(p, sum * at::full({}, kFactor, at::kFloat));
    EXPECT_THAT(it.exact.averaged_slice(p, kFactor), HasTheBitsOf(want));
    EXPECT_THAT(it.slice_of(it.exact.take_averaged(kFactor), p), HasTheBitsOf(want));
    it.give({2});  // and nothing of it is left
    it.expect({{2}});
  });
}

TEST(WindowExact, APassThatIsAbandonedAndAWindowThatIsClearedLeaveNothing) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    for (const bool expects_one : {true, false}) {
      Exact it(context, kind, expects_one);
      const auto abandoned = [&](uint64_t pass) {
        it.exact.begin(1.0, /*expects_step=*/false);
        for (const std::size_t p : {4u, 2u})
          it.exact.ready(p, contribution(p, pass, it.rank, kind.dtype));
        it.exact.abandon(WindowPart::Pass);
      };
      abandoned(7);
      it.give({1});
      abandoned(8);
      it.give({2});
      it.expect({{1}, {2}});
      it.give({5});
      it.give({6});
      it.exact.abandon(WindowPart::All);
      it.give({3});
      it.expect({{3}});
    }
  });
}

TEST(WindowExact, WhatWasAssignedStandsAndLaterPassesAddToIt) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    for (const bool expects_one : {true, false}) {
      Exact it(context, kind, expects_one);
      it.give({1});
      const auto value = it.padded_slice(5, at::tensor({0.25F, -3.0F, 7.0F}));
      it.exact.assign(5, value);
      EXPECT_THAT(it.exact.averaged_slice(5, kFactor), HasTheBitsOf(value));
      it.give({2});
      const auto want = it.want(5, {{2}}) + value;
      EXPECT_THAT(it.exact.averaged_slice(5, kFactor), HasTheBitsOf(want));
      const auto average = it.exact.take_averaged(kFactor);
      EXPECT_THAT(it.slice_of(average, 5), HasTheBitsOf(want));
      EXPECT_THAT(it.slice_of(average, 4), HasTheBitsOf(it.want(4, {{1}, {2}})));
    }
  });
}

TEST(WindowExact, MoreGradientsThanASumHoldsAreAnError) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       Exact it(context, {true, true, at::kFloat}, true);
                       const auto gradient = contribution(3, 1, 0, at::kFloat);
                       it.exact.begin(1.0, /*expects_step=*/false);
                       const auto give = [&](int64_t count) {
                         for (int64_t i = 0; i < count; ++i) {
                           it.exact.ready(3, gradient);
                           if (i % 4096 == 0) it.exact.abandon(WindowPart::Pass);
                         }
                       };
                       const int64_t most = (int64_t{1} << 19) - 1;
                       EXPECT_EQ(error_of([&] { give(most); }), "");
                       it.exact.abandon(WindowPart::All);
                       EXPECT_EQ(error_of([&] { give(most); }), "") << "a new window";
                       EXPECT_THAT(error_of([&] { give(1); }),
                                   testing::HasSubstr("expected at most 524287 gradients"));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::gradient
