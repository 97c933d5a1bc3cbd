// A window's only pass that begins the reduction while it runs, and what may come between.
#include <unistd.h>

#include <chrono>
#include <set>
#include <string>

#include "conformance/testing/window_sums.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::gradient {
namespace {

using conformance::average_of;
using conformance::error_of;
using conformance::for_each_kind;
using conformance::kFilled;
using conformance::kNumels;
using conformance::sample;
using conformance::Windowed;
using conformance::WindowKind;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::RankContext;

// Between a pass and its step ranks may meet elsewhere, as when they log a loss: nobody still waits
// in a pass for a rank whose own has ended, whatever that filled, or has thrown.
TEST(Window, APassThatFillsLessOrThrowsOnOneRankLetsTheOthersGo) {
  const auto place = testing::TempDir() + "equigrad_window_" + std::to_string(::getpid());
  for_each_kind(
      [place](RankContext& context, const WindowKind& kind) {
        if (kind.each) return;
        static int uses = 0;
        const auto own = comm::connect_gloo(
            context.rank(), context.world_size(),
            place + "_" + std::to_string(context.world_size()) + "_" + std::to_string(uses++),
            std::chrono::seconds(20));
        const auto log = [&] { comm::exchange(*own, at::zeros({1}, at::kLong)); };
        for (const int throws : {0, 1, 2}) {  // 2: and passes before it logs
          Windowed it(context, kind);
          const bool last = it.rank == it.world - 1;
          if (last && throws != 0) {
            it.begin(1);
            it.ready(5, 1);
            it.window.abandon(WindowPart::Pass);
            if (throws == 1) log();
            it.pass(1);
          } else {
            it.pass(1, 1, last ? std::set<std::size_t>{4} : std::set<std::size_t>{});
          }
          if (!last || throws != 1) log();
          const auto average = it.take();
          EXPECT_THAT(it.slice_of(average, 5), HasTheBitsOf(average_of(it, 5, {{1}})));
          const int with_4 = throws != 0 ? it.world : it.world - 1;
          EXPECT_THAT(it.slice_of(average, 4), HasTheBitsOf(average_of(it, 4, {{1, 1, with_4}})));
        }
      },
      {2, 3});
}

TEST(Window, WhatIsAssignedAfterTheOnlyPassStandsForIt) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    Windowed it(context, kind);
    it.pass(1);
    const auto value = it.padded_slice(5, sample(kNumels[5], 91));
    it.window.assign(5, value);
    const auto average = it.take();
    EXPECT_THAT(it.slice_of(average, 5), HasTheBitsOf(value));
    EXPECT_THAT(it.slice_of(average, 4), HasTheBitsOf(average_of(it, 4, {{1}})));
  });
}

// Where a pass of stages 0, 1 fails on one rank, the others have sent what they will not take back
// before the step.
TEST(Window, ARankMayDoItsPassAgainWhileTheOthersKeepTheirs) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    if (kind.each) return;
    Windowed it(context, kind);
    if (it.rank == it.world - 1) {
      it.begin(3.0);
      for (const std::size_t p : {5U, 4U}) it.ready(p, 9);
      it.window.abandon(WindowPart::Pass);
    }
    it.pass(1);
    const auto average = it.take();
    for (const auto p : kFilled)
      EXPECT_THAT(it.slice_of(average, p), HasTheBitsOf(average_of(it, p, {{1}}))) << p;
  });
}

// The engine of another model, on the same ranks, may have thrown: who hears it in a pass fails it.
TEST(Window, AnExceptionElsewhereEndsAPassThatHasAnnounced) {
  for_each_kind(
      [](RankContext& context, const WindowKind& kind) {
        if (!kind.eager) return;
        Windowed it(context, kind);
        agreement::Participant other(*it.group, 1);
        if (it.rank == it.world - 1) {
          other.abandon();
        } else {
          it.begin(1);
          it.ready(5, 9);
          EXPECT_THAT(error_of([&] { it.window.end(); }), testing::HasSubstr("exception on rank"));
          it.window.abandon(WindowPart::Pass);
        }
        EXPECT_EQ(it.window.progress().passes, 0);
        it.pass(1);
        const auto average = it.take();
        EXPECT_THAT(it.slice_of(average, 4), HasTheBitsOf(average_of(it, 4, {{1}})));
      },
      {2, 3});
}

// What had arrived of the groups before it is sent once more, and counts once.
TEST(Window, ASecondPartOfAParameterWhoseGroupHasLeftTakesTheGuessBack) {
  for_each_kind([](RankContext& context, const WindowKind& kind) {
    if (kind.each) return;
    for (const auto late : kFilled) {
      Windowed it(context, kind);
      it.begin(1);
      for (const std::size_t p : {5U, 4U, 3U, 2U, 1U, 0U}) it.ready(p, 1);
      it.ready(late, 2);
      it.window.end();
      const auto average = it.take();
      for (const auto p : kFilled) {
        const auto parts = p == late ? std::vector<conformance::Weighed>{{1}, {2}}
                                     : std::vector<conformance::Weighed>{{1}};
        EXPECT_THAT(it.slice_of(average, p), HasTheBitsOf(average_of(it, p, parts))) << p << late;
      }
      EXPECT_EQ(it.ledger.total_bytes(), 0);
    }
  });
}

TEST(Window, ClearingItDoesNotEndTheGuess) {
  for_each_kind(
      [](RankContext& context, const WindowKind& kind) {
        if (!kind.eager) return;
        Windowed it(context, kind);
        it.pass(1);
        const auto held = it.ledger.total_bytes();
        it.window.abandon(WindowPart::All);
        it.pass(2);
        EXPECT_EQ(it.ledger.total_bytes(), held) << "what has arrived";
        EXPECT_GT(it.ledger.bytes(memory::Category::Gradients), 0);
        it.take();
      },
      {2, 3});
}

}  // namespace
}  // namespace equigrad::gradient
