// The loss scale and autocast through the engine's own calls: what is refused, what is left alone,
// and when a scale that several engines share changes.
#include "conformance/testing/small_run.hpp"
#include "engine/engine.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::expect_equal;
using conformance::fp16_of;
using conformance::SmallRun;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;

TEST(EnginePrecision, AnUnscaledBackwardIsRefusedAndTheWindowIsAsBefore) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage, .accumulation = 2, .precision = fp16_of(8)});
    SmallRun plain(context, {.stage = stage, .accumulation = 2, .precision = fp16_of(8)});
    for (int64_t micro = 0; micro < 4; ++micro) {
      const auto loss = run.loss(micro);
      EXPECT_THAT(error_of([&] { loss.backward({}, /*retain_graph=*/true); }),
                  AllOf(HasSubstr("engine.backward(loss)"), HasSubstr("engine.scale(loss)")));
      EXPECT_THAT(
          error_of([&] { run.engine->backward(run.engine->scale(loss), /*retain_graph=*/true); }),
          HasSubstr("more than once"));
      run.engine->scale(loss).backward();
      run.engine->step();
      plain.train(micro);
    }
    EXPECT_EQ(run.engine->loss_scale(), plain.engine->loss_scale());
    expect_equal(run.all(), plain.all(), "after four refusals");
  });
}

TEST(EnginePrecision, AnOverflowOnOneRankIsSkippedByAllAndHalvesTheScale) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage, .precision = fp16_of(8)});
    SmallRun plain(context, {.stage = stage, .precision = fp16_of(8)});
    run.train(0);
    plain.train(0);
    const auto before = run.all();
    const double scale = run.engine->loss_scale();
    run.engine->backward(run.loss(1) + run["b2"][1] * (context.rank() == 1 ? 1e6 : 1.0));
    run.engine->step();
    EXPECT_FALSE(run.engine->was_step_applied());
    EXPECT_EQ(run.engine->loss_scale(), scale / 2);
    EXPECT_EQ(run.engine->counters().skipped_steps, 1);
    expect_equal(run.all(), before, "the skipped step");
    // Powers of two only move exponents.
    run.train(2);
    plain.train(2);
    expect_equal(run.all(), plain.all(), "after the skipped step");
  });
}

TEST(EnginePrecision, ASharedScaleChangesWhenNoEngineHoldsGradientsOfIt) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun a(context, {.stage = stage, .precision = fp16_of(4)});
    SmallRun b(context, {.stage = stage, .precision = fp16_of(4)});
    EXPECT_THAT(error_of([&] { a.engine->scale(a.loss(0) + b.loss(0)).backward(); }),
                HasSubstr("share_loss_scale"));
    b.engine->share_loss_scale(*a.engine);
    for (int64_t step = 0; step < 3; ++step) {
      const double scale = a.engine->loss_scale();
      a.engine->scale(a.loss(step) + b.loss(step)).backward();
      b.engine->step();
      EXPECT_EQ(a.engine->loss_scale(), scale) << "the other's window is full of it";
      a.engine->step();
      EXPECT_EQ(b.engine->loss_scale(), a.engine->loss_scale());
    }
    EXPECT_GT(a.engine->loss_scale(), 16.0);
    a.engine->backward(a.loss(3));
    EXPECT_THAT(error_of([&] { a.engine->share_loss_scale(*b.engine); }),
                HasSubstr("got 1 backward passes"));
    a.engine->zero_grad();
    SmallRun other(context, {.stage = stage, .precision = fp16_of(5)});
    EXPECT_THAT(error_of([&] { a.engine->share_loss_scale(*other.engine); }),
                HasSubstr("expected engines with the same loss scale"));
  });
}

TEST(EnginePrecision, AnEngineThatIsDestroyedInMidWindowHoldsNoSharedScale) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun a(context, {.stage = stage, .precision = fp16_of(4)});
    SmallRun b(context, {.stage = stage, .precision = fp16_of(4)});
    b.engine->share_loss_scale(*a.engine);
    a.engine->backward(a.loss(0));
    b.train(0);
    EXPECT_EQ(b.engine->loss_scale(), 16.0) << "the other's window is full of it";
    a.engine.reset();
    for (int64_t step = 1; step < 4; ++step) b.train(step);
    EXPECT_GT(b.engine->loss_scale(), 16.0);
  });
}

TEST(EnginePrecision, AnEngineWhoseWindowIsEmptiedHoldsNoSharedScale) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun a(context, {.stage = stage, .precision = fp16_of(4)});
    SmallRun b(context, {.stage = stage, .precision = fp16_of(4)});
    b.engine->share_loss_scale(*a.engine);
    a.engine->backward(a.loss(0));
    a.engine->zero_grad();
    for (int64_t step = 0; step < 3; ++step) b.train(step);
    EXPECT_GT(b.engine->loss_scale(), 16.0);
  });
}

TEST(EnginePrecision, AnEngineWithoutALossScaleRefusesScaledGradients) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun scaled(context, {.stage = stage, .precision = fp16_of(4)});
    SmallRun plain(context, {.stage = stage}), alone(context, {.stage = stage});
    const auto joint = [&] { return scaled.engine->scale(scaled.loss(0) + plain.loss(0)); };
    EXPECT_NE(error_of([&] { joint().backward(); }), "");
    scaled.engine->zero_grad();
    plain.train(0);
    alone.train(0);
    expect_equal(plain.all(), alone.all(), "after the refusal");
  });
}

TEST(EnginePrecision, TheGettersGiveWhatTheScaleIsTakenOutOf) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun small(context, {.stage = stage, .precision = fp16_of(2)});
    SmallRun large(context, {.stage = stage, .precision = fp16_of(6)});
    small.engine->backward(small.loss(0));
    large.engine->backward(large.loss(0));
    EXPECT_THAT(large.engine->access().full_gradient("w1"),
                conformance::oracle::HasTheBitsOf(small.engine->access().full_gradient("w1")));
  });
}

TEST(EnginePrecision, ABackwardWithoutAForwardUnderAutocastIsRefused) {
  at_every_stage(2, [](RankContext& context, int stage) {
    PrecisionConfig precision;
    precision.autocast = {true, DataType::Bf16, {}};
    SmallRun run(context, {.stage = stage, .precision = precision});
    EXPECT_THAT(error_of([&] { run.engine->backward(run.loss(0)); }),
                HasSubstr("expected a forward pass under torch_autocast, got none"));
    const auto loss = [&] {
      const auto guard = run.engine->autocast();
      return run.loss(0);
    };
    run.engine->backward(loss());
    run.engine->step();
    EXPECT_EQ(run.engine->counters().global_steps, 1);
  });
}

}  // namespace
}  // namespace equigrad
