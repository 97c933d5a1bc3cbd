// The schedules: DeepSpeed's values, edges, momentum, lr_kwargs, parameter groups.
#include "engine/schedule/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "engine/schedule/tests/schedules.hpp"

namespace equigrad::schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Kind = SchedulerConfig::Kind;
using WarmupType = SchedulerConfig::WarmupType;

const std::vector<double> kOneGroup{0.01};

// As the update uses them: rounded to fp32.
std::vector<float> first_lrs(const SchedulerConfig& config, int count) {
  std::vector<float> lrs;
  for (const Rates& rates : first_rates(config, count))
    lrs.push_back(static_cast<float>(rates.lr.at(0)));
  return lrs;
}

std::vector<float> first_beta1s(const SchedulerConfig& config, int count) {
  std::vector<float> betas;
  for (const Rates& rates : first_rates(config, count))
    betas.push_back(static_cast<float>(rates.beta1.at(0)));
  return betas;
}

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// ---- What DeepSpeed 0.19.6 gives, in fp32 ----

TEST(DeepSpeedsValues, WarmupLr) {
  EXPECT_THAT(first_lrs(warmup(Kind::WarmupLr, 5), 8),
              ElementsAre(0.0F, 0.0F, 0.00430676574F, 0.00682606176F, 0.00861353148F,
                          0.00999999978F, 0.00999999978F, 0.00999999978F));
  SchedulerConfig config = warmup(Kind::WarmupLr, 4, 0, WarmupType::Linear);
  config.warmup_min_lr = {0.001};
  EXPECT_THAT(first_lrs(config, 8),
              ElementsAre(0.00100000005F, 0.00100000005F, 0.00325000007F, 0.00549999997F,
                          0.00774999987F, 0.00999999978F, 0.00999999978F, 0.00999999978F));
}

TEST(DeepSpeedsValues, WarmupDecayLr) {
  SchedulerConfig config = warmup(Kind::WarmupDecayLr, 4, 9, WarmupType::Linear);
  config.warmup_max_lr = {0.001};
  EXPECT_THAT(
      first_lrs(config, 12),
      ElementsAre(0.0F, 0.0F, 0.000250000012F, 0.000500000024F, 0.000750000007F, 0.00100000005F,
                  0.00079999998F, 0.000600000028F, 0.00039999999F, 0.000199999995F, 0.0F, 0.0F));
}

TEST(DeepSpeedsValues, WarmupCosineLr) {
  SchedulerConfig config = warmup(Kind::WarmupCosineLr, 4, 9);
  config.warmup_min_ratio = 0.1;
  EXPECT_THAT(first_lrs(config, 12),
              ElementsAre(0.0F, 0.00100000005F, 0.00549999997F, 0.00813233107F, 0.00999999978F,
                          0.00904518086F, 0.00654543051F, 0.0034555695F, 0.00095581956F,
                          9.99999997e-07F, 9.99999997e-07F, 9.99999997e-07F));
}

TEST(DeepSpeedsValues, OneCycleAndItsMomentum) {
  SchedulerConfig config = one_cycle(4, 5);
  config.decay_step_size = 2;
  config.decay_lr_rate = 0.5;
  config.decay_mom_rate = 0.05;
  EXPECT_THAT(first_lrs(config, 13),
              ElementsAre(0.00100000005F, 0.00300000003F, 0.00499999989F, 0.00700000022F,
                          0.00899999961F, 0.0074F, 0.00579999993F, 0.00419999985F, 0.00260000001F,
                          0.00100000005F, 0.00079999998F, 0.00066666666F, 0.000571428565F));
  EXPECT_THAT(first_beta1s(config, 13),
              ElementsAre(0.800000012F, 0.875F, 0.850000024F, 0.824999988F, 0.800000012F,
                          0.819999993F, 0.839999974F, 0.860000014F, 0.879999995F, 0.899999976F,
                          0.922500014F, 0.944999993F, 0.967499971F));
}

TEST(DeepSpeedsValues, OneCycleInStairs) {
  SchedulerConfig config = one_cycle(4, 4);
  config.cycle_first_stair_count = 2;
  EXPECT_THAT(first_lrs(config, 11),
              ElementsAre(0.00100000005F, 0.00100000005F, 0.00499999989F, 0.00499999989F,
                          0.00899999961F, 0.00499999989F, 0.00499999989F, 0.00100000005F,
                          0.00100000005F, 0.00100000005F, 0.00100000005F));
  EXPECT_THAT(first_beta1s(config, 11),
              ElementsAre(0.800000012F, 0.899999976F, 0.850000024F, 0.850000024F, 0.800000012F,
                          0.850000024F, 0.850000024F, 0.899999976F, 0.899999976F, 0.899999976F,
                          0.899999976F));
}

TEST(DeepSpeedsValues, LrRangeTest) {
  EXPECT_THAT(first_lrs(range_test(3, false), 7),
              ElementsAre(0.00100000005F, 0.00166666671F, 0.00233333325F, 0.00300000003F,
                          0.00366666657F, 0.00433333311F, 0.00499999989F));
  EXPECT_THAT(first_lrs(range_test(3, true), 7),
              ElementsAre(0.00100000005F, 0.00100000005F, 0.00100000005F, 0.00300000003F,
                          0.00300000003F, 0.00300000003F, 0.00499999989F));
}

// ---- What it gives in fp64, where another order of operations has other bits ----

double lr_of(const SchedulerConfig& config, int update) {
  return first_rates(config, update + 1).back().lr.at(0);
}

TEST(DeepSpeedsBits, ALogarithmIsMultipliedByTheInverseOfTheLast) {
  SchedulerConfig config = warmup(Kind::WarmupDecayLr, 1000, 1000);
  config.warmup_max_lr = {0.001};
  EXPECT_EQ(lr_of(config, 23), 0.00045390927867253102);  // quotient: 0.00045390927867253097
}

TEST(DeepSpeedsBits, ARateIsTheLeastAndAPartOfTheDifference) {
  SchedulerConfig config = warmup(Kind::WarmupLr, 5, 0, WarmupType::Linear);
  config.warmup_min_lr = {0.001};
  EXPECT_EQ(lr_of(config, 5), 0.0082000000000000024);
  EXPECT_EQ(lr_of(config, 6), 0.010000000000000002) << "above warmup_max_lr";
}

TEST(DeepSpeedsBits, AnAngleAndARatioAreParts) {
  SchedulerConfig config = warmup(Kind::WarmupCosineLr, 4, 9);
  config.warmup_min_ratio = 0.1;
  EXPECT_EQ(lr_of(config, 2), 0.0055000000000000005);
  EXPECT_EQ(lr_of(config, 7), 0.0034555695366224508);
  EXPECT_EQ(lr_of(config, 9), 1.0000000000000002e-06);
}

TEST(DeepSpeedsBits, ThePartOfACycleIsRoundedWithAOneBeforeIt) {
  SchedulerConfig config = one_cycle(3, 4);
  EXPECT_EQ(lr_of(config, 1), 0.0036666666666666657);  // of 1 / 3: 0.0036666666666666666
  EXPECT_EQ(lr_of(config, 5), 0.0049999999999999984);
  EXPECT_EQ(first_rates(config, 5).back().beta1.at(0), 0.82500000000000007);
}

// ---- Edges ----

TEST(Edges, AWarmUpOfOneStepCountsAsTwo) {
  EXPECT_EQ(first_rates(warmup(Kind::WarmupLr, 1), 6), first_rates(warmup(Kind::WarmupLr, 2), 6));
}

TEST(Edges, ASecondHalfOfNoStepsFallsAtOnce) {
  EXPECT_THAT(first_lrs(one_cycle(2, 0), 4), ElementsAre(0.001F, 0.005F, 0.001F, 0.001F));
}

TEST(Edges, TheSecondHalfIsLikeTheFirstUnlessItSaysOtherwise) {
  SchedulerConfig config = one_cycle(7, 7);
  config.cycle_first_stair_count = config.cycle_second_stair_count.emplace(3);
  const std::vector<Rates> expected = first_rates(config, 20);
  config.cycle_second_step_size.reset();
  config.cycle_second_stair_count.reset();
  EXPECT_EQ(first_rates(config, 20), expected);
}

TEST(Edges, CosineEndsAtItsFloorAndDecayAtZero) {
  EXPECT_EQ(first_rates(warmup(Kind::WarmupDecayLr, 5, 5), 9).back().lr.at(0), 0.0);
  SchedulerConfig config = warmup(Kind::WarmupCosineLr, 5, 8);
  config.cos_min_ratio = 0.5;
  EXPECT_EQ(first_rates(config, 400).back().lr.at(0), 0.005);
}

TEST(Momentum, IsLeftAloneUnlessItIsCycled) {
  SchedulerConfig config = one_cycle(4, 5);
  config.cycle_momentum = false;
  for (const Rates& rates : first_rates(config, 12)) EXPECT_TRUE(rates.beta1.empty());
  EXPECT_TRUE(first_rates(warmup(Kind::WarmupLr, 5), 1)[0].beta1.empty());
}

TEST(Momentum, ThatWouldReachOneIsAnErrorBeforeItDoes) {
  SchedulerConfig config = one_cycle(1, 1);
  config.decay_step_size = 1;
  config.decay_mom_rate = 0.1;  // 0.9, 0.99, 1.08
  const auto schedule = make_schedule(config, kOneGroup);
  for (int update = 0; update < 3; ++update) schedule->step();
  const Rates before = schedule->current();
  const std::string expected =
      "[scheduler.params.decay_mom_rate] expected it to leave beta1 below 1 at iteration 3, got "
      "1.08. Lower it, raise decay_step_size, or end the training earlier.";
  EXPECT_EQ(error_of([&] { schedule->check({}); }), expected);
  EXPECT_EQ(error_of([&] { schedule->step(); }), expected);
  EXPECT_EQ(schedule->current(), before);
  schedule->step({{"batch_iteration", 0}});  // and it works afterwards
  EXPECT_EQ(schedule->last_batch_iteration(), 0);
}

TEST(Momentum, ThatIsOneWhereTheScheduleGoesOnIsAnError) {
  SchedulerConfig config = one_cycle(1, 1);
  config.decay_step_size = 1;
  config.decay_mom_rate = 0.1;
  config.last_batch_iteration = 2;
  EXPECT_EQ(make_schedule(config, kOneGroup)->current().beta1, (std::vector<double>{0.9 * 1.1}));
  config.last_batch_iteration = 3;
  EXPECT_THAT(error_of([&] { make_schedule(config, kOneGroup); }),
              HasSubstr("expected it to leave beta1 below 1 at iteration 3, got 1.08"));
}

TEST(RangeTest, BeyondFp32IsAnErrorBeforeItGetsThere) {
  SchedulerConfig config = range_test(1, false);
  config.lr_range_test_min_lr = {1e38};  // 1e38, 3e38, 5e38
  const auto schedule = make_schedule(config, kOneGroup);
  schedule->step();
  EXPECT_THAT(error_of([&] { schedule->step(); }),
              HasSubstr("expected a learning rate that fp32 can hold at iteration 1, got 5e+38"));
  EXPECT_EQ(schedule->last_batch_iteration(), 0);
}

// ---- Keywords ----

TEST(Keywords, EachScheduleTakesItsOwnAndNamesIt) {
  const auto wrong = [](const SchedulerConfig& config, const char* name) {
    return error_of([&] { make_schedule(config, kOneGroup)->step({{name, 3}}); });
  };
  for (const Kind kind : {Kind::WarmupLr, Kind::WarmupDecayLr, Kind::WarmupCosineLr})
    EXPECT_EQ(wrong(warmup(kind, 5, 9), "batch_iteration"),
              "[engine.step] expected " + std::string(name_of(kind)) +
                  "'s keyword \"last_batch_iteration\" in lr_kwargs, got \"batch_iteration\". Did "
                  "you mean \"last_batch_iteration\"?");
  EXPECT_THAT(wrong(one_cycle(4, 5), "last_batch_iteration"), HasSubstr("\"batch_iteration\""));
  EXPECT_THAT(wrong(range_test(4, false), "batch_iteratoin"), HasSubstr("Did you mean"));
  EXPECT_THAT(wrong(range_test(4, false), "bogus"), HasSubstr("got \"bogus\". Rename it"));
  EXPECT_EQ(wrong(warmup(Kind::WarmupLr, 5), "last_batch_iteration"), "no error");
  EXPECT_EQ(wrong(one_cycle(4, 5), "batch_iteration"), "no error");
}

TEST(Keywords, MustBeIterationsAndAWrongOneChangesNothing) {
  const auto schedule = make_schedule(one_cycle(4, 5), kOneGroup);
  schedule->step();
  const Rates before = schedule->current();
  for (const double value : {-1.0, 0.5, 1e300, std::nan("")}) {
    const LrKeywords keywords{{"batch_iteration", value}};
    EXPECT_THAT(error_of([&] { schedule->step(keywords); }),
                HasSubstr("to be a whole number from 0 to 2^53, got"));
    EXPECT_NE(error_of([&] { schedule->check(keywords); }), "no error");
  }
  EXPECT_THROW(schedule->step({{"batch_iteration", 3}, {"bogus", 1}}), Error);
  EXPECT_EQ(schedule->current(), before);
  EXPECT_EQ(schedule->last_batch_iteration(), 0);
  schedule->check({{"batch_iteration", 7}});  // looks, and does not step
  EXPECT_EQ(schedule->last_batch_iteration(), 0);
}

// ---- Groups ----

TEST(Groups, TakeOneValueForAllOrOneEach) {
  SchedulerConfig config = one_cycle(4, 5);
  config.cycle_max_lr = {0.009, 0.09};
  config.cycle_max_mom = {0.9, 0.95};
  const Rates peak = first_rates(config, 5, {1, 1}).back();
  EXPECT_THAT(peak.lr, ElementsAre(0.001 + (0.009 - 0.001), 0.001 + (0.09 - 0.001)));
  EXPECT_THAT(first_rates(config, 12, {1, 1}).back().beta1, ElementsAre(0.9, 0.95));
  EXPECT_EQ(error_of([&] {
              make_schedule(config, {1, 1, 1});
            }),
            "[scheduler.params.cycle_max_lr] expected 1 value or one for each of the 3 parameter "
            "groups, got 2. Give one number for all groups, or a list of that length.");
  config = warmup(Kind::WarmupLr, 4);
  config.warmup_min_lr = {};
  EXPECT_THAT(error_of([&] { make_schedule(config, kOneGroup); }), HasSubstr("got 0"));
}

}  // namespace
}  // namespace equigrad::schedule
