// Schedulers, lr_kwargs and progressive layer drop as the engine's step() drives them.
#include <cmath>
#include <limits>
#include <optional>

#include "conformance/testing/small_run.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::expect_equal;
using conformance::SmallOptions;
using conformance::SmallRun;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;

SchedulerConfig warmup(int64_t steps) {
  SchedulerConfig scheduler;
  scheduler.kind = SchedulerConfig::Kind::WarmupLr;
  scheduler.warmup_min_lr = {0.25};
  scheduler.warmup_max_lr = {1.25};
  scheduler.warmup_num_steps = steps;
  scheduler.warmup_type = SchedulerConfig::WarmupType::Linear;
  return scheduler;
}

TEST(EngineSchedule, EveryUpdateUsesTheRateOfItsIteration) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun it(context,
                {.stage = stage, .accumulation = 2, .momentum = true, .scheduler = warmup(4)});
    // DeepSpeed's values: the first update and the second both at warmup_min_lr.
    const std::vector<double> rates{0.25, 0.25, 0.5, 0.75, 1.0, 1.25, 1.25};
    for (std::size_t update = 0; update < rates.size(); ++update) {
      EXPECT_EQ(it.engine->get_lr(), std::vector<double>{rates[update]});
      const auto before = it.engine->access().full_master("b2");
      const auto momentum = it.engine->access().full_optimizer_state("b2", "momentum_buffer");
      it.train(static_cast<int64_t>(2 * update));
      it.engine->backward(it.loss(static_cast<int64_t>(2 * update + 1)));
      const auto taken = it.engine->access().full_gradient("b2");
      const auto decayed = taken + before * 0.1;  // weight decay, then momentum
      const auto step = update == 0 ? decayed : momentum * 0.9 + decayed;
      it.engine->step();
      EXPECT_THAT(it.engine->access().full_master("b2"),
                  HasTheBitsOf(before - step * rates[update]));
    }
  });
}

TEST(EngineSchedule, AKeywordJumpsAndAWrongOneChangesNothing) {
  at_every_stage(2, [](RankContext& context, int stage) {
    const SmallOptions options{.stage = stage, .scheduler = warmup(8)};
    SmallRun jumped(context, options), plain(context, options);
    jumped.engine->backward(jumped.loss(0));
    EXPECT_THAT(error_of([&] {
                  jumped.engine->step({{"batch_iteration", 3}});
                }),
                HasSubstr("last_batch_iteration"));
    jumped.engine->step({{"last_batch_iteration", 7}});
    plain.train(0);
    expect_equal(jumped.all(), plain.all(), "a keyword acts after the update");
    EXPECT_EQ(jumped.engine->get_lr(), std::vector<double>{0.25 + 7.0 / 8});
    EXPECT_EQ(plain.engine->get_lr(), std::vector<double>{0.25});
    SmallRun none(context, {.stage = stage});
    none.engine->backward(none.loss(0));
    EXPECT_THAT(error_of([&] {
                  none.engine->step({{"last_batch_iteration", 7}});
                }),
                AllOf(HasSubstr("without a scheduler"), HasSubstr("last_batch_iteration")));
    EXPECT_EQ(none.engine->counters().micro_steps, 0);
    none.engine->step();
  });
}

TEST(EngineSchedule, ASkippedStepHoldsTheRate) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun it(context, {.stage = stage, .bf16 = true, .scheduler = warmup(4)});
    for (int64_t micro = 0; micro < 3; ++micro) it.train(micro);
    const auto rate = it.engine->get_lr();
    EXPECT_EQ(rate, std::vector<double>{0.75});
    const double bad = context.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
    it.engine->backward(it.loss(3) * bad);
    it.engine->step();
    EXPECT_FALSE(it.engine->was_step_applied());
    EXPECT_EQ(it.engine->counters().skipped_steps, 1);
    EXPECT_EQ(it.engine->get_lr(), rate);
    it.train(4);
    EXPECT_TRUE(it.engine->was_step_applied());
    EXPECT_EQ(it.engine->get_lr(), std::vector<double>{1.0});
  });
}

TEST(EngineSchedule, ModelsThatTakeTheStateOfLayerDropGetIt) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       SmallRun run(context, {.layer_drop = {true, 0.5, 1.0}});
                       struct {
                         double theta = -1;
                         double forward(int64_t x, const schedule::LayerDropState& state) {
                           theta = state.progressive_layer_drop ? state.pld_theta : -1;
                           return static_cast<double>(x);
                         }
                       } dropping;
                       struct {
                         int64_t forward(int64_t x) { return x + 1; }
                       } plain;
                       EXPECT_EQ(run.engine->forward(plain, 3), 4);
                       for (const double want : {1.0, 1.0, 0.5 * std::exp(-1.0) + 0.5}) {
                         EXPECT_EQ(run.engine->forward(dropping, 3), 3.0);
                         EXPECT_EQ(dropping.theta, want);
                         run.train(0);
                       }
                     }),
            "");
}

}  // namespace
}  // namespace equigrad
