// The loss scale: the documented sequences, step by step, and one scale for several steppers.
#include "reference/loss_scale.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "reference/stepper.hpp"
#include "reference/tests/probe.hpp"

namespace equigrad::reference {
namespace {

using conformance::Probe;
using Policy = LossScaleSpec::Policy;

// S after each step; "o" is a step that overflows.
std::vector<double> scales(const LossScaleSpec& spec, const std::string& steps) {
  LossScale scale(spec);
  std::vector<double> after;
  for (const char step : steps) {
    scale.update(step == 'o');
    after.push_back(scale.scale());
  }
  return after;
}

LossScaleSpec zero(double initial, int64_t hysteresis, int64_t window) {
  return {
      .policy = Policy::DeepSpeed, .initial = initial, .window = window, .hysteresis = hysteresis};
}

using Scales = std::vector<double>;

TEST(LossScale, FollowsTheDocumentedSequence) {
  EXPECT_EQ(scales(zero(16, 2, 2), "ooo....."), (Scales{16, 8, 4, 4, 4, 8, 8, 16}));
}

TEST(LossScale, GrowsFirstAfterTheWindowAndOneStep) {
  EXPECT_EQ(scales(zero(1, 2, 3), "......."), (Scales{1, 1, 1, 2, 2, 2, 4}));
  EXPECT_EQ(scales(zero(1, 2, 1), "...."), (Scales{1, 2, 4, 8}));
}

TEST(LossScale, WithoutHysteresisHalvesAtOnce) {
  EXPECT_EQ(scales(zero(16, 1, 2), "oo...o"), (Scales{8, 4, 4, 4, 8, 4}));
}

TEST(LossScale, HysteresisComesBackWithGrowthOrWithEveryGoodStep) {
  // h is used up by the first overflow; a good step in between does not bring it back, growth does.
  EXPECT_EQ(scales(zero(16, 2, 2), "o.o...o"), (Scales{16, 16, 8, 8, 8, 16, 16}));
  auto consecutive = zero(16, 2, 2);
  consecutive.consecutive_hysteresis = true;
  EXPECT_EQ(scales(consecutive, "o.o.oo"), (Scales{16, 16, 16, 16, 16, 8}));
}

TEST(LossScale, StopsAtTheMinimum) {
  auto spec = zero(8, 1, 2);
  spec.minimum = 4;
  LossScale scale(spec);
  scale.update(true);
  EXPECT_EQ(scale.scale(), 4);
  EXPECT_THROW(scale.update(true), c10::Error);
  EXPECT_EQ(scale.scale(), 4);
  spec.hysteresis = 2;
  spec.initial = 4;
  LossScale patient(spec);
  EXPECT_NO_THROW(patient.update(true)) << "the hysteresis comes first";
  EXPECT_THROW(patient.update(true), c10::Error);
}

TEST(LossScale, GradScalerCountsGoodStepsInARow) {
  const LossScaleSpec spec = {.policy = Policy::GradScaler, .initial = 16, .window = 2};
  EXPECT_EQ(scales(spec, "o..o.o..."), (Scales{8, 8, 16, 8, 8, 4, 4, 8, 8}));
  const LossScaleSpec low = {.policy = Policy::GradScaler, .initial = 1, .window = 2};
  EXPECT_EQ(scales(low, "oo"), (Scales{0.5, 0.25})) << "it knows no minimum";
}

TEST(LossScale, NoneIsOneAndStaticStays) {
  EXPECT_EQ(scales({}, "o..o"), (Scales{1, 1, 1, 1}));
  EXPECT_EQ(scales({.policy = Policy::Static, .initial = 128, .window = 1}, "o..o"),
            (Scales{128, 128, 128, 128}));
}

TEST(LossScale, RefusesWhatItCannotFollow) {
  const auto refused = [](auto change) {
    LossScaleSpec spec = zero(16, 2, 2);
    change(spec);
    EXPECT_THROW(LossScale{spec}, c10::Error);
  };
  refused([](LossScaleSpec& spec) { spec.initial = 3; });
  refused([](LossScaleSpec& spec) { spec.initial = 0; });
  refused([](LossScaleSpec& spec) { spec.initial = -2; });
  refused([](LossScaleSpec& spec) { spec.initial = std::numeric_limits<double>::infinity(); });
  refused([](LossScaleSpec& spec) { spec.minimum = 0.3; });
  refused([](LossScaleSpec& spec) { spec.minimum = 32; });
  refused([](LossScaleSpec& spec) { spec.window = 0; });
  refused([](LossScaleSpec& spec) { spec.hysteresis = 0; });
}

Recipe scaled(Policy policy) {
  Recipe recipe;
  recipe.world = 2;
  recipe.order = SumOrder::AddThenReduce;
  recipe.precision.loss_scale = {.policy = policy, .initial = 16, .window = 1, .hysteresis = 1};
  return recipe;
}

struct Driven {
  explicit Driven(Policy policy = Policy::GradScaler)
      : stepper(scaled(policy), std::make_shared<Probe>(4)) {}
  void pass(int64_t rank, float value = 1) {
    auto& probe = dynamic_cast<Probe&>(stepper.model());
    const at::Tensor loss = probe.loss_of(at::full({4}, value)) * stepper.loss_scale();
    stepper.pass(rank, [&] { loss.backward(); });
  }
  void window(float value = 1) {
    for (const int64_t rank : {0, 1}) pass(rank, value);
  }
  Stepper stepper;
};

constexpr float kInfinite = std::numeric_limits<float>::infinity();

TEST(LossScale, OfAStepperChangesAfterTheStep) {
  Driven run;
  run.window();
  EXPECT_EQ(run.stepper.loss_scale(), 16);
  const StepRecord good = run.stepper.step();
  EXPECT_EQ(good.loss_scale, 16);
  EXPECT_EQ(good.gradients.at("weight")[0].item<float>(), 1) << "divided by the scale it was made";
  EXPECT_EQ(run.stepper.loss_scale(), 32);
  run.window(kInfinite);
  const StepRecord skipped = run.stepper.step();
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(skipped.loss_scale, 32);
  EXPECT_EQ(run.stepper.loss_scale(), 16);
  EXPECT_TRUE(at::equal(skipped.masters.at("weight"), good.masters.at("weight")));
  EXPECT_TRUE(
      at::equal(skipped.state.at("exp_avg").at("weight"), good.state.at("exp_avg").at("weight")));
  EXPECT_EQ(skipped.step_count, good.step_count);
  run.window();
  run.stepper.discard(0);
  run.stepper.discard(1);
  EXPECT_EQ(run.stepper.loss_scale(), 16) << "no step, no change";
}

TEST(LossScale, AtTheMinimumTheStepThrowsAndTheWindowIsEmpty) {
  Driven run(Policy::DeepSpeed);
  for (int i = 0; i < 4; ++i) {
    run.window(kInfinite);
    run.stepper.step();
  }
  EXPECT_EQ(run.stepper.loss_scale(), 1);
  run.window(kInfinite);
  EXPECT_THROW(run.stepper.step(), c10::Error);
  run.window();
  EXPECT_EQ(run.stepper.step().gradients.at("weight")[0].item<float>(), 1);
}

TEST(LossScale, SharedChangesOnceWhenNoneHoldsPasses) {
  Driven a, b, c;
  a.stepper.share_loss_scale(b.stepper);
  a.stepper.share_loss_scale(c.stepper);
  for (Driven* run : {&a, &b, &c}) run->window(run == &b ? kInfinite : 1);
  EXPECT_FALSE(a.stepper.step().skipped);
  EXPECT_EQ(a.stepper.loss_scale(), 16) << "b and c hold passes of this scale";
  EXPECT_TRUE(b.stepper.step().skipped);
  EXPECT_EQ(c.stepper.loss_scale(), 16);
  EXPECT_EQ(c.stepper.step().gradients.at("weight")[0].item<float>(), 1);
  for (const Driven* run : {&a, &b, &c})
    EXPECT_EQ(run->stepper.loss_scale(), 8) << "one overflowed";
  for (Driven* run : {&a, &b, &c}) run->window();
  a.stepper.step();
  b.stepper.step();
  c.stepper.discard(0);
  EXPECT_EQ(a.stepper.loss_scale(), 8) << "rank 1 of c still holds a pass";
  c.stepper.discard(1);
  EXPECT_EQ(a.stepper.loss_scale(), 16) << "the overflow of before is forgotten";
}

TEST(LossScale, IsSharedBetweenWindowsByEqualSettingsOnly) {
  Driven a, b, c, d, other(Policy::DeepSpeed);
  EXPECT_THROW(a.stepper.share_loss_scale(other.stepper), c10::Error);
  b.pass(0);
  EXPECT_THROW(a.stepper.share_loss_scale(b.stepper), c10::Error);
  EXPECT_THROW(b.stepper.share_loss_scale(a.stepper), c10::Error);
  c.stepper.share_loss_scale(d.stepper);
  EXPECT_THROW(a.stepper.share_loss_scale(d.stepper), c10::Error) << "c would be left behind";
  EXPECT_NO_THROW(c.stepper.share_loss_scale(d.stepper)) << "twice is once";
  EXPECT_NO_THROW(c.stepper.share_loss_scale(a.stepper));
}

}  // namespace
}  // namespace equigrad::reference
