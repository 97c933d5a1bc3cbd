// The rules of change, step by step and against the table they come from; and the one change of a
// scaler that several engines share.
#include "engine/loss/loss_scaler.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "conformance/testing/sample.hpp"

namespace equigrad::loss {
namespace {

using conformance::error_of;
using Policy = LossScaleConfig::Policy;
using Scales = std::vector<double>;
using testing::HasSubstr;

LossScaleConfig of(Policy policy, int64_t power = 4, int64_t window = 2, int64_t hysteresis = 2) {
  LossScaleConfig config;
  config.policy = policy;
  config.static_scale = 128;
  config.initial_scale_power = power;
  config.loss_scale_window = window;
  config.hysteresis = hysteresis;
  return config;
}

// The scale after each step of one engine; 'o' is an overflow, '.' is none. Every step but the
// first has passes before it.
Scales run(LossScaler& scaler, const std::string& steps) {
  Scales scales;
  for (const char step : steps) {
    if (!scales.empty()) scaler.hold(&scaler);
    scaler.stepped(&scaler, step == 'o');
    scales.push_back(scaler.scale());
  }
  return scales;
}

Scales run(const LossScaleConfig& config, const std::string& steps) {
  LossScaler scaler(config);
  return run(scaler, steps);
}

TEST(LossScaler, WithoutAPolicyTheScaleIsOneAndNotNeeded) {
  LossScaler scaler(LossScaleConfig{});
  EXPECT_FALSE(scaler.is_needed());
  EXPECT_EQ(run(scaler, "o..o"), (Scales{1, 1, 1, 1}));
}

TEST(LossScaler, AStaticScaleNeverChanges) {
  LossScaler scaler(of(Policy::Static));
  EXPECT_TRUE(scaler.is_needed());
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_EQ(run(scaler, "ooo......"), Scales(9, 128));
}

TEST(LossScaler, DeepSpeedStartsAtItsPowerAndGrowsFirstAfterAWindowAndOneStep) {
  EXPECT_EQ(LossScaler(of(Policy::DeepSpeed, 16)).scale(), 65536);
  EXPECT_EQ(run(of(Policy::DeepSpeed, 4, 3), "........"), (Scales{16, 16, 16, 32, 32, 32, 64, 64}));
  EXPECT_EQ(run(of(Policy::DeepSpeed, 4, 1), "...."), (Scales{16, 32, 64, 128}));
}

TEST(LossScaler, DeepSpeedLetsTheFirstOverflowPass) {
  EXPECT_EQ(run(of(Policy::DeepSpeed), "ooo....."), (Scales{16, 8, 4, 4, 4, 8, 8, 16}));
  EXPECT_EQ(run(of(Policy::DeepSpeed, 4, 2, 1), "oo"), (Scales{8, 4}));
  EXPECT_EQ(run(of(Policy::DeepSpeed, 4, 2, 3), "oooo"), (Scales{16, 16, 8, 4}));
}

TEST(LossScaler, HysteresisStartsAnewWithAGrowthOrWithAGoodStep) {
  EXPECT_EQ(run(of(Policy::DeepSpeed, 4, 2), "o.o.o"), (Scales{16, 16, 8, 8, 4}));
  EXPECT_EQ(run(of(Policy::DeepSpeed, 4, 2), "o...oo"), (Scales{16, 16, 16, 32, 32, 16}));
  auto consecutive = of(Policy::DeepSpeed, 4, 2);
  consecutive.consecutive_hysteresis = true;
  EXPECT_EQ(run(consecutive, "o.o.oo"), (Scales{16, 16, 16, 16, 16, 8}));
}

TEST(LossScaler, AtTheFloorAnOverflowIsAnErrorAndTheNextStepGoesOn) {
  auto config = of(Policy::DeepSpeed, 2, 2, 1);
  config.min_loss_scale = 2;
  LossScaler scaler(config);
  EXPECT_EQ(run(scaler, "o"), Scales{2});
  scaler.hold(&scaler);
  const auto error = error_of([&] { scaler.stepped(&scaler, true); });
  EXPECT_THAT(error, HasSubstr("[step] "));
  EXPECT_THAT(error, HasSubstr("smallest loss scale, 2 (min_loss_scale), got an overflow"));
  // It counted as a step with an overflow, and left nothing behind.
  EXPECT_EQ(run(scaler, "...."), (Scales{2, 2, 4, 4}));
}

TEST(LossScaler, TheFloorMayBeAboveTheStartAndHysteresisHoldsThere) {
  auto config = of(Policy::DeepSpeed, 2, 2, 2);
  config.min_loss_scale = 8;
  LossScaler scaler(config);
  EXPECT_EQ(run(scaler, "oo"), (Scales{4, 8}));
  EXPECT_THAT(error_of([&] { scaler.stepped(&scaler, true); }), HasSubstr("overflow"));
  config.initial_scale_power = 3;
  EXPECT_EQ(run(config, "o"), Scales{8}) << "the first one is let pass";
}

// The table as it stands in DeepSpeed's documentation of behaviour, nothing else.
struct Table {
  double scale;
  int64_t window, hysteresis;
  bool consecutive;
  double min;
  int64_t it = 0, last = -1, left = hysteresis;
  bool step(bool overflow) {  // false for the error
    bool fine = true;
    if (overflow) {
      if (hysteresis == 1 || left == 1) {
        if (scale == min) {
          fine = false;
        } else {
          scale = std::max(scale / 2, min);
        }
      } else {
        left -= 1;
      }
      last = it;
    } else {
      if (consecutive) left = hysteresis;
      const int64_t n = it - last - 1;
      if (n > 0 && n % window == 0) {
        if (!consecutive) left = hysteresis;
        scale *= 2;
      }
    }
    it += 1;
    return fine;
  }
};

TEST(LossScaler, DeepSpeedFollowsItsTableOverRandomSteps) {
  int errors = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    auto config = of(Policy::DeepSpeed, static_cast<int64_t>(seed % 5),
                     1 + static_cast<int64_t>(seed / 5 % 4), 1 + static_cast<int64_t>(seed % 3));
    config.consecutive_hysteresis = seed % 2 == 1;
    config.min_loss_scale = std::ldexp(1.0, static_cast<int>(seed % 7) - 3);
    LossScaler scaler(config);
    Table table{.scale = std::ldexp(1.0, static_cast<int>(seed % 5)),
                .window = config.loss_scale_window,
                .hysteresis = config.hysteresis,
                .consecutive = config.consecutive_hysteresis,
                .min = config.min_loss_scale};
    for (uint64_t step = 0; step < 60; ++step) {
      const bool overflow = reference::hash(seed * 1000 + step) % 10 < 2 + seed % 5;
      const bool fine = error_of([&] { scaler.stepped(&seed, overflow); }).empty();
      ASSERT_EQ(fine, table.step(overflow)) << seed << " " << step;
      ASSERT_EQ(scaler.scale(), table.scale) << seed << " " << step;
      errors += fine ? 0 : 1;
    }
  }
  EXPECT_GT(errors, 100) << "the floor was reached";
}

TEST(LossScaler, GradScalerHalvesAtOnceAndDoublesAfterItsWindow) {
  EXPECT_EQ(run(of(Policy::GradScaler, 4, 3), "......"), (Scales{16, 16, 32, 32, 32, 64}));
  EXPECT_EQ(run(of(Policy::GradScaler, 4, 3), "..o..."), (Scales{16, 16, 8, 8, 8, 16}));
  EXPECT_EQ(run(of(Policy::GradScaler, 4, 3), "oooooo"), (Scales{8, 4, 2, 1, 0.5, 0.25}));
}

TEST(LossScaler, TheScaleStaysANormalNumberOfFp32) {
  const double largest = std::ldexp(1.0, 127), smallest = std::ldexp(1.0, -126);
  EXPECT_EQ(run(of(Policy::DeepSpeed, 126, 1), "...."),
            (Scales{largest / 2, largest, largest, largest}));
  EXPECT_EQ(run(of(Policy::GradScaler, 126, 1), "..o"), (Scales{largest, largest, largest / 2}));
  EXPECT_EQ(run(of(Policy::GradScaler, -125, 1), "oo."),
            (Scales{smallest, smallest, smallest * 2}));
  // At the top, hysteresis starts anew as with any growth: the second overflow lowers.
  EXPECT_EQ(run(of(Policy::DeepSpeed, 127, 1), "o..oo"),
            (Scales{largest, largest, largest, largest, largest / 2}));
}

TEST(LossScaler, RefusesWhatIsNoScale) {
  const auto refusal = [](LossScaleConfig config) { return error_of([&] { LossScaler{config}; }); };
  for (const double scale : {0.0, -2.0, 3.0, 1e300, std::ldexp(1.0, 128), std::ldexp(1.0, -127),
                             std::nan(""), HUGE_VAL}) {
    auto config = of(Policy::Static);
    config.static_scale = scale;
    EXPECT_THAT(refusal(config), HasSubstr("[initialize] expected a static loss_scale to be a "
                                           "power of two from 2^-126 to 2^127"));
    config = of(Policy::DeepSpeed);
    config.min_loss_scale = scale;
    EXPECT_THAT(refusal(config), HasSubstr("expected min_loss_scale to be a power of two"));
    config.policy = Policy::GradScaler;
    EXPECT_EQ(refusal(config), "") << "it has no floor";
  }
  EXPECT_THAT(refusal(of(Policy::DeepSpeed, 128)), HasSubstr("initial_scale_power from -126"));
  EXPECT_THAT(refusal(of(Policy::GradScaler, -127)), HasSubstr("initial_scale_power from -126"));
  EXPECT_THAT(refusal(of(Policy::GradScaler, 4, 0)), HasSubstr("loss_scale_window to be at least"));
  EXPECT_THAT(refusal(of(Policy::DeepSpeed, 4, 0)), HasSubstr("loss_scale_window to be at least"));
  EXPECT_THAT(refusal(of(Policy::DeepSpeed, 4, 2, 0)), HasSubstr("hysteresis to be at least 1"));
}

// Two engines that share a scaler, in one order of events: "h" and "H" hold, "s" and "S" step, "x"
// and "X" step with an overflow, "r" and "R" release; the small letters are the first engine's. The
// scale after each event.
Scales share(LossScaler& scaler, const std::string& events) {
  static const int first = 0, second = 0;
  Scales scales;
  for (const char event : events) {
    const void* engine = event >= 'a' ? &first : &second;
    switch (event | 0x20) {
      case 'h':
        scaler.hold(engine);
        break;
      case 'r':
        scaler.released(engine);
        break;
      default:
        scaler.stepped(engine, (event | 0x20) == 'x');
    }
    scales.push_back(scaler.scale());
  }
  return scales;
}

Scales share(const std::string& events) {
  LossScaler scaler(of(Policy::GradScaler, 4, 2));
  return share(scaler, events);
}

TEST(SharedLossScaler, ChangesOnceWhenTheLastOfTheHoldersHasStepped) {
  EXPECT_EQ(share("hHxS"), (Scales{16, 16, 16, 8}));
  EXPECT_EQ(share("hHsX"), (Scales{16, 16, 16, 8}));
  EXPECT_EQ(share("HhXs"), (Scales{16, 16, 16, 8}));
  EXPECT_EQ(share("hHXx"), (Scales{16, 16, 16, 8}));
  EXPECT_EQ(share("hHsShHsS"), (Scales{16, 16, 16, 16, 16, 16, 16, 32})) << "two steps, not four";
}

TEST(SharedLossScaler, DoesNotChangeWhileOneHoldsHoweverOftenTheOtherSteps) {
  EXPECT_EQ(share("hHxhxhsS"), (Scales{16, 16, 16, 16, 16, 16, 16, 8}));
  EXPECT_EQ(share("hHHHxS"), (Scales{16, 16, 16, 16, 16, 8})) << "holding twice is holding";
  EXPECT_EQ(share("hHxhSs"), (Scales{16, 16, 16, 16, 16, 8})) << "the first holds anew";
}

TEST(SharedLossScaler, ReleasingIsNoStepButLetsADueChangeHappen) {
  EXPECT_EQ(share("hr"), (Scales{16, 16}));
  EXPECT_EQ(share("hHxR"), (Scales{16, 16, 16, 8}));
  EXPECT_EQ(share("hHrX"), (Scales{16, 16, 16, 8}));
  EXPECT_EQ(share("hrRhrshs"), (Scales{16, 16, 16, 16, 16, 16, 16, 32}))
      << "what was released was no good step";
  EXPECT_EQ(share("hHxRR"), (Scales{16, 16, 16, 8, 8})) << "once";
  EXPECT_EQ(share("hshr"), (Scales{16, 16, 16, 16})) << "the step had its change";
}

TEST(SharedLossScaler, OneThatHoldsNothingMayStepAndEachStepCounts) {
  EXPECT_EQ(share("xX"), (Scales{8, 4}));
  EXPECT_EQ(share("hXs"), (Scales{16, 16, 8}));
}

TEST(SharedLossScaler, TheErrorAtTheFloorComesToTheLastThatSteps) {
  const auto config = of(Policy::DeepSpeed, 0, 2, 1);
  LossScaler scaler(config);
  share(scaler, "hHx");
  EXPECT_THAT(error_of([&] { share(scaler, "S"); }), HasSubstr("got an overflow"));
  EXPECT_EQ(share(scaler, "sss"), (Scales{1, 1, 2})) << "nothing is left over";
}

TEST(SharedLossScaler, AnErrorThatAReleaseMakesDueIsKeptForTheNextStep) {
  const auto config = of(Policy::DeepSpeed, 0, 2, 1);
  LossScaler scaler(config);
  EXPECT_EQ(share(scaler, "hHxR"), (Scales{1, 1, 1, 1}));
  EXPECT_THAT(error_of([&] { share(scaler, "s"); }), HasSubstr("got an overflow"));
  EXPECT_EQ(share(scaler, "sss"), (Scales{1, 1, 2}));
}

}  // namespace
}  // namespace equigrad::loss
