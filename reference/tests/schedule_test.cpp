// The schedules: what DeepSpeed's formulas give in Python's fp64, to the last digit; keys that are
// left out, lists by group, and what is no update.
#include "reference/schedule.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "reference/stepper.hpp"
#include "reference/tests/probe.hpp"

namespace equigrad::reference {
namespace {

using testing::HasSubstr;
using Values = std::vector<double>;
using Kind = ScheduleKind;

const Values kGroupLr = {0.01, 0.3};

// Of one group, updates 0, 1, ..
Values lrs(const ScheduleSpec& spec, int64_t updates, size_t group = 0) {
  Values values;
  for (int64_t update = 0; update < updates; ++update)
    values.push_back(rates(spec, kGroupLr, update).lr.at(group));
  return values;
}

Values beta1s(const ScheduleSpec& spec, int64_t updates, size_t group = 0) {
  Values values;
  for (int64_t update = 0; update < updates; ++update)
    values.push_back(rates(spec, kGroupLr, update).beta1.at(group));
  return values;
}

// Of the first group.
Values lrs_at(const ScheduleSpec& spec, const std::vector<int64_t>& updates) {
  Values values;
  for (const int64_t update : updates) values.push_back(rates(spec, kGroupLr, update).lr.at(0));
  return values;
}

// ---- Every key given, two groups ----

TEST(WarmupLr, RisesWithTheLogarithm) {
  const ScheduleSpec spec = {
      .warmup_min_lr = {0.001, 0.02}, .warmup_max_lr = {0.01, 0.3}, .warmup_num_steps = 5};
  EXPECT_EQ(lrs(spec, 8), (Values{0.001, 0.001, 0.0048760890226605385, 0.0071434557503738689,
                                  0.0087521780453210761, 0.010000000000000002, 0.010000000000000002,
                                  0.010000000000000002}));
  EXPECT_EQ(lrs(spec, 8, 1),
            (Values{0.02, 0.02, 0.14058943626055004, 0.21112973445607588, 0.26117887252110011,
                    0.29999999999999999, 0.29999999999999999, 0.29999999999999999}));
  EXPECT_TRUE(rates(spec, kGroupLr, 3).beta1.empty());
}

TEST(WarmupLr, RisesWithTheStep) {
  const ScheduleSpec spec = {
      .warmup_min_lr = {0.001}, .warmup_num_steps = 5, .warmup_type = WarmupType::Linear};
  EXPECT_EQ(lrs(spec, 8), (Values{0.001, 0.001, 0.0028000000000000004, 0.0046000000000000008,
                                  0.0064000000000000003, 0.0082000000000000024,
                                  0.010000000000000002, 0.010000000000000002}));
  EXPECT_EQ(lrs(spec, 8, 1), (Values{0.001, 0.001, 0.0608, 0.1206, 0.18039999999999998, 0.2402,
                                     0.29999999999999999, 0.29999999999999999}));
}

TEST(WarmupDecayLr, FallsToItsLeast) {
  const ScheduleSpec spec = {.kind = Kind::WarmupDecayLr,
                             .warmup_min_lr = {0.0001, 0.0002},
                             .warmup_max_lr = {0.003},
                             .warmup_num_steps = 4,
                             .warmup_type = WarmupType::Linear,
                             .total_num_steps = 9};
  EXPECT_EQ(lrs(spec, 12), (Values{0.0001, 0.0001, 0.0008250000000000001, 0.0015500000000000002,
                                   0.0022750000000000001, 0.0030000000000000001,
                                   0.0024200000000000003, 0.0018400000000000001,
                                   0.0012600000000000003, 0.00068000000000000016, 0.0001, 0.0001}));
  EXPECT_EQ(lrs(spec, 12, 1),
            (Values{0.00020000000000000001, 0.00020000000000000001, 0.00089999999999999998,
                    0.0016000000000000001, 0.0023, 0.0030000000000000001, 0.0024400000000000003,
                    0.0018799999999999999, 0.0013200000000000002, 0.00076000000000000004,
                    0.00020000000000000001, 0.00020000000000000001}));
}

TEST(WarmupCosineLr, ScalesEachGroupsOwnRate) {
  const ScheduleSpec spec = {.kind = Kind::WarmupCosineLr,
                             .warmup_num_steps = 4,
                             .total_num_steps = 9,
                             .warmup_min_ratio = 0.1};
  EXPECT_EQ(
      lrs(spec, 12),
      (Values{0, 0.001, 0.0055000000000000005, 0.0081323312532452039, 0.01, 0.0090451804633775498,
              0.0065454304633775495, 0.0034555695366224508, 0.0009558195366224508,
              1.0000000000000002e-06, 1.0000000000000002e-06, 1.0000000000000002e-06}));
  EXPECT_EQ(lrs(spec, 12, 1),
            (Values{0, 0.029999999999999999, 0.16500000000000001, 0.24396993759735608,
                    0.29999999999999999, 0.2713554139013265, 0.19636291390132649,
                    0.10366708609867352, 0.028674586098673523, 3.0000000000000001e-05,
                    3.0000000000000001e-05, 3.0000000000000001e-05}));
}

TEST(WarmupCosineLr, RisesWithTheStepAndFallsToItsFloor) {
  const ScheduleSpec spec = {.kind = Kind::WarmupCosineLr,
                             .warmup_num_steps = 4,
                             .warmup_type = WarmupType::Linear,
                             .total_num_steps = 9,
                             .cos_min_ratio = 0.25};
  EXPECT_EQ(lrs(spec, 12),
            (Values{0, 0, 0.0025000000000000001, 0.0050000000000000001, 0.0074999999999999997,
                    0.0092838137289060537, 0.0074088137289060529, 0.0050911862710939487,
                    0.0032161862710939479, 0.0025000000000000001, 0.0025000000000000001,
                    0.0025000000000000001}));
}

ScheduleSpec cycle(int64_t first, std::optional<int64_t> second) {
  return {.kind = Kind::OneCycle,
          .cycle_min_lr = {0.001},
          .cycle_max_lr = {0.009},
          .cycle_first_step_size = first,
          .cycle_second_step_size = second};
}

TEST(OneCycle, CyclesTheFirstBetaAgainstTheRateAndDecays) {
  ScheduleSpec spec = cycle(3, 4);
  spec.cycle_min_lr = {0.001, 0.02};
  spec.cycle_max_lr = {0.009, 0.3};
  spec.decay_lr_rate = 0.5;
  spec.decay_step_size = 2;
  spec.cycle_min_mom = {0.8, 0.7};
  spec.cycle_max_mom = {0.9, 0.95};
  spec.decay_mom_rate = 0.05;
  EXPECT_EQ(lrs(spec, 11),
            (Values{0.001, 0.0036666666666666657, 0.0063333333333333314, 0.0090000000000000011,
                    0.007000000000000001, 0.0049999999999999984, 0.0029999999999999992, 0.001,
                    0.00080000000000000004, 0.00066666666666666664, 0.00057142857142857147}));
  EXPECT_EQ(lrs(spec, 11, 1),
            (Values{0.02, 0.11333333333333329, 0.20666666666666655, 0.29999999999999999,
                    0.23000000000000001, 0.15999999999999992, 0.089999999999999969, 0.02, 0.016,
                    0.013333333333333334, 0.011428571428571429}));
  EXPECT_EQ(beta1s(spec, 11), (Values{0.80000000000000004, 0.8666666666666667, 0.83333333333333337,
                                      0.80000000000000004, 0.82500000000000007, 0.85000000000000009,
                                      0.875, 0.90000000000000002, 0.92249999999999999,
                                      0.94500000000000006, 0.96750000000000003}));
  EXPECT_EQ(
      beta1s(spec, 11, 1),
      (Values{0.69999999999999996, 0.8666666666666667, 0.78333333333333333, 0.69999999999999996,
              0.76249999999999996, 0.82499999999999996, 0.88749999999999996, 0.94999999999999996,
              0.97374999999999989, 0.99749999999999994, 1.02125}));
}

TEST(OneCycle, HasStairsOfItsOwnOnEachSide) {
  ScheduleSpec spec = cycle(3, 7);
  spec.cycle_max_lr = {0.009, 0.3};
  spec.cycle_first_stair_count = 2;
  spec.cycle_second_stair_count = 3;
  const Values second = {0.0063333333333333332, 0.0036666666666666666};
  EXPECT_EQ(lrs(spec, 13),
            (Values{0.001, 0.001, 0.0050000000000000001, 0.0090000000000000011, second[0],
                    second[0], second[1], second[1], 0.001, 0.001, 0.001, 0.001, 0.001}));
  EXPECT_EQ(lrs(spec, 8, 1),
            (Values{0.001, 0.001, 0.15049999999999999, 0.29999999999999999, 0.20033333333333331,
                    0.20033333333333331, 0.10066666666666665, 0.10066666666666665}));
  EXPECT_EQ(beta1s(spec, 9), (Values{0.80000000000000004, 0.90000000000000002, 0.85000000000000009,
                                     0.80000000000000004, 0.83333333333333337, 0.83333333333333337,
                                     0.8666666666666667, 0.8666666666666667, 0.90000000000000002}));
}

TEST(OneCycle, FallsAtOnceWhenItsSecondHalfHasNoUpdates) {
  ScheduleSpec spec = cycle(2, 0);
  spec.decay_step_size = 1;
  spec.decay_lr_rate = 1;
  EXPECT_EQ(lrs(spec, 6), (Values{0.001, 0.0050000000000000001, 0.001, 0.00050000000000000001,
                                  0.00033333333333333332, 0.00025000000000000001}));
}

TEST(LrRangeTest, GrowsOnALineOrInStairs) {
  ScheduleSpec spec = {.kind = Kind::LrRangeTest,
                       .lr_range_test_min_lr = {0.001, 0.02},
                       .lr_range_test_step_size = 3,
                       .lr_range_test_step_rate = 0.7};
  EXPECT_EQ(lrs(spec, 7),
            (Values{0.001, 0.0012333333333333335, 0.0014666666666666667, 0.0016999999999999999,
                    0.0019333333333333331, 0.002166666666666667, 0.0023999999999999998}));
  EXPECT_EQ(lrs(spec, 7, 1),
            (Values{0.02, 0.02466666666666667, 0.029333333333333333, 0.034000000000000002,
                    0.038666666666666662, 0.043333333333333342, 0.048000000000000001}));
  spec.lr_range_test_staircase = true;
  EXPECT_EQ(lrs(spec, 7), (Values{0.001, 0.001, 0.001, 0.0016999999999999999, 0.0016999999999999999,
                                  0.0016999999999999999, 0.0023999999999999998}));
}

// ---- Keys left out ----

TEST(LeftOut, WarmupLrTakesAThousandStepsToEachGroupsOwnRate) {
  const ScheduleSpec spec;
  EXPECT_EQ(lrs_at(spec, {0, 1, 2, 3, 999, 1000, 1001}),
            (Values{0, 0, 0.0010034333188799374, 0.001590404182398875, 0.009998551627419942, 0.01,
                    0.01}));
  EXPECT_EQ(rates(spec, kGroupLr, 1001).lr, kGroupLr);
}

TEST(LeftOut, WarmupDecayLrEndsItsWarmUpAtAThousandth) {
  const ScheduleSpec spec = {.kind = Kind::WarmupDecayLr, .total_num_steps = 2000};
  EXPECT_EQ(
      lrs_at(spec, {0, 2, 23, 500, 1001, 1002, 1500, 1999, 2001}),
      (Values{0, 0.00010034333188799373, 0.00045390927867253102, 0.00089965666811200635, 0.001,
              0.0009990000000000001, 0.00050100000000000003, 1.9999999999999999e-06, 0}));
  EXPECT_EQ(rates(spec, kGroupLr, 1001).lr, (Values{0.001, 0.001}));
}

TEST(LeftOut, WarmupCosineLrBeginsAtNothingAndEndsAtATenThousandth) {
  const ScheduleSpec spec = {.kind = Kind::WarmupCosineLr, .total_num_steps = 2000};
  EXPECT_EQ(lrs_at(spec, {0, 1, 2, 500, 1000, 1001, 1500, 1999, 2000, 2001}),
            (Values{0, 0, 0.0010034333188799374, 0.0089965666811200624, 0.01, 0.0099999753284766915,
                    0.0050004999999999997, 1.0246715233098635e-06, 1.0000000000000002e-06,
                    1.0000000000000002e-06}));
}

TEST(LeftOut, OneCycleTakesTwoThousandUpdatesForEachHalfAndDoesNotDecay) {
  const ScheduleSpec spec = {
      .kind = Kind::OneCycle, .cycle_min_lr = {0.001}, .cycle_max_lr = {0.009}};
  const std::vector<int64_t> updates = {0, 1, 2, 1999, 2000, 2001, 3000, 3999, 4000, 4001, 9000};
  EXPECT_EQ(lrs_at(spec, updates),
            (Values{0.001, 0.0010040000000000014, 0.0010079999999999991, 0.008996000000000004,
                    0.0090000000000000011, 0.008996000000000004, 0.0050000000000000001,
                    0.0010039999999999977, 0.001, 0.001, 0.001}));
  Values betas;
  for (const int64_t update : updates) betas.push_back(rates(spec, kGroupLr, update).beta1.at(1));
  EXPECT_EQ(betas, (Values{0.80000000000000004, 0.89995000000000003, 0.89990000000000003,
                           0.80005000000000004, 0.80000000000000004, 0.80005000000000004,
                           0.85000000000000009, 0.89995000000000003, 0.90000000000000002,
                           0.90000000000000002, 0.90000000000000002}));
}

TEST(LeftOut, TheSecondHalfIsAsTheFirst) {
  ScheduleSpec spec = cycle(3, {});
  spec.cycle_first_stair_count = 2;
  EXPECT_EQ(lrs(spec, 8), (Values{0.001, 0.001, 0.0050000000000000001, 0.0090000000000000011,
                                  0.0050000000000000001, 0.001, 0.001, 0.001}));
}

TEST(LeftOut, ADecayRateIsNotReadWithoutItsStepSize) {
  ScheduleSpec spec = cycle(2, 2);
  const Rates last = rates(spec, kGroupLr, 9);
  spec.decay_lr_rate = spec.decay_mom_rate = 0.5;
  EXPECT_EQ(rates(spec, kGroupLr, 9), last);
  spec.decay_step_size = 4;
  EXPECT_EQ(rates(spec, kGroupLr, 8), (Rates{{0.001 / 1.5, 0.001 / 1.5}, {0.9 * 1.5, 0.9 * 1.5}}));
}

TEST(LeftOut, LrRangeTestDoublesInTwoThousandUpdates) {
  EXPECT_EQ(lrs_at({.kind = Kind::LrRangeTest}, {0, 1, 2, 1999, 2000, 2001, 4000}),
            (Values{0.001, 0.0010004999999999999, 0.0010009999999999999, 0.0019995, 0.002,
                    0.0020004999999999997, 0.0030000000000000001}));
}

// ---- Habits and edges ----

TEST(Habits, TheFirstTwoUpdatesOfAWarmUpHaveOneRate) {
  for (const WarmupType type : {WarmupType::Log, WarmupType::Linear}) {
    ScheduleSpec spec = {.warmup_min_lr = {0.25}, .warmup_num_steps = 3, .warmup_type = type};
    spec.total_num_steps = 9;
    spec.warmup_min_ratio = 0.5;
    for (const Kind kind : {Kind::WarmupLr, Kind::WarmupDecayLr}) {
      spec.kind = kind;
      EXPECT_EQ(rates(spec, {1}, 0), (Rates{{0.25}, {}}));
      EXPECT_EQ(rates(spec, {1}, 1), (Rates{{0.25}, {}}));
      EXPECT_NE(rates(spec, {1}, 2), (Rates{{0.25}, {}}));
    }
    spec.kind = Kind::WarmupCosineLr;
    EXPECT_EQ(rates(spec, {1}, 0), (Rates{{0}, {}})) << "whatever the least ratio is";
    EXPECT_EQ(rates(spec, {1}, 1), (Rates{{0.5}, {}}));
  }
}

TEST(Habits, OneCycleBeginsWithTheLeastFirstBeta) {
  ScheduleSpec spec = cycle(4, 4);
  EXPECT_EQ(beta1s(spec, 2), (Values{0.8, 0.9 - (0.9 - 0.8) * 0.25}));
  spec.cycle_momentum = false;
  for (const int64_t update : {0, 1, 8, 9}) EXPECT_TRUE(rates(spec, {1}, update).beta1.empty());
}

TEST(Edges, AWarmUpOfOneStepHasTwo) {
  ScheduleSpec spec = {.warmup_num_steps = 1, .warmup_type = WarmupType::Linear};
  EXPECT_EQ(lrs(spec, 4), (Values{0, 0, 0.005, 0.01}));
}

TEST(Edges, ATrainingThatIsShorterThanItsWarmUpEndsWithIt) {
  ScheduleSpec spec = {.kind = Kind::WarmupDecayLr,
                       .warmup_max_lr = {0.5},
                       .warmup_num_steps = 4,
                       .warmup_type = WarmupType::Linear,
                       .total_num_steps = 2};
  EXPECT_EQ(lrs(spec, 7), (Values{0, 0, 0.125, 0.25, 0.375, 0, 0}));
  spec.kind = Kind::WarmupCosineLr;
  spec.cos_min_ratio = 0.25;
  EXPECT_EQ(lrs(spec, 7), (Values{0, 0, 0.0025, 0.005, 0.0075, 0.0025, 0.0025}));
}

TEST(Edges, GoesOnFromAnIterationThatIsGiven) {
  for (const Kind kind : {Kind::WarmupLr, Kind::WarmupDecayLr, Kind::WarmupCosineLr, Kind::OneCycle,
                          Kind::LrRangeTest}) {
    ScheduleSpec spec = cycle(3, 4);
    spec.kind = kind;
    spec.warmup_num_steps = 4;
    spec.total_num_steps = 9;
    ScheduleSpec later = spec;
    later.last_batch_iteration = 5;
    for (const int64_t update : {0, 1, 4})
      EXPECT_EQ(rates(later, kGroupLr, update), rates(spec, kGroupLr, update + 6));
  }
}

TEST(Edges, AListOfOneCountsForAllGroups) {
  ScheduleSpec spec = cycle(3, 4);
  ScheduleSpec listed = spec;
  listed.cycle_min_lr = {0.001, 0.001, 0.001};
  listed.cycle_max_mom = {0.9, 0.9, 0.9};
  for (const int64_t update : {0, 2, 5, 9})
    EXPECT_EQ(rates(spec, {1, 1, 1}, update), rates(listed, {1, 1, 1}, update));
}

// ---- Errors ----

std::string error_of(const ScheduleSpec& spec, int64_t update = 0) {
  try {
    rates(spec, kGroupLr, update);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Errors, AKeyThatMustBeGivenIsNamed) {
  for (const Kind kind : {Kind::WarmupDecayLr, Kind::WarmupCosineLr})
    EXPECT_THAT(error_of({.kind = kind}), HasSubstr("expected total_num_steps, got none"));
  ScheduleSpec spec = cycle(3, 4);
  spec.cycle_min_lr = {};
  EXPECT_THAT(error_of(spec), HasSubstr("expected one cycle_min_lr or one for each of 2 groups, "
                                        "got 0"));
  spec.cycle_min_lr = {0.001};
  spec.cycle_max_lr = {};
  EXPECT_THAT(error_of(spec), HasSubstr("cycle_max_lr"));
}

TEST(Errors, AListOfAnotherLengthIsNamed) {
  const Values three = {0.1, 0.2, 0.3};
  EXPECT_THAT(error_of({.warmup_min_lr = three}), HasSubstr("one warmup_min_lr or one for each"));
  EXPECT_THAT(error_of({.warmup_max_lr = three}), HasSubstr("one warmup_max_lr"));
  EXPECT_THAT(error_of({.kind = Kind::LrRangeTest, .lr_range_test_min_lr = three}),
              HasSubstr("one lr_range_test_min_lr"));
  ScheduleSpec spec = cycle(3, 4);
  spec.cycle_max_mom = three;
  EXPECT_THAT(error_of(spec), HasSubstr("one cycle_max_mom"));
  spec.cycle_momentum = false;
  EXPECT_EQ(error_of(spec), "no error") << "it is not read";
  spec.cycle_momentum = true;
  spec.cycle_max_mom = {0.9};
  spec.cycle_min_mom = three;
  EXPECT_THAT(error_of(spec), HasSubstr("one cycle_min_mom"));
}

TEST(Errors, StepsThatDeepSpeedRefusesAreNamed) {
  for (const Kind kind : {Kind::WarmupLr, Kind::WarmupDecayLr, Kind::WarmupCosineLr})
    EXPECT_THAT(error_of({.kind = kind, .warmup_num_steps = 0, .total_num_steps = 9}),
                HasSubstr("expected warmup_num_steps to be at least 1, got 0"));
  EXPECT_THAT(error_of(cycle(0, 4)), HasSubstr("cycle_first_step_size to be at least 1, got 0"));
  EXPECT_THAT(error_of(cycle(3, -1)), HasSubstr("cycle_second_step_size to be at least 0"));
  EXPECT_THAT(error_of({.kind = Kind::LrRangeTest, .lr_range_test_step_size = 0}),
              HasSubstr("lr_range_test_step_size to be at least 1"));
  EXPECT_THAT(error_of({.last_batch_iteration = -2}), HasSubstr("last_batch_iteration"));
  EXPECT_THAT(error_of({}, -1), HasSubstr("applied_updates to be at least 0, got -1"));
}

// ---- With a stepper ----

TEST(WithAStepper, ASkippedUpdateDoesNotCount) {
  const ScheduleSpec spec = {.warmup_min_lr = {0.5},
                             .warmup_max_lr = {1.5},
                             .warmup_num_steps = 4,
                             .warmup_type = WarmupType::Linear};
  const auto probe = std::make_shared<conformance::Probe>(1);
  Stepper stepper({.optimizer = {.rule = Rule::Sgd}}, probe);
  stepper.set("master", "weight", at::full({1}, 8.0F));
  const Values own = stepper.lr();
  int64_t applied = 0;
  Values used;
  for (const bool overflows : {false, false, true, false, false}) {
    stepper.set_lr(rates(spec, own, applied).lr);
    used.push_back(stepper.lr().at(0));
    const float gradient = overflows ? std::numeric_limits<float>::infinity() : 1.0F;
    stepper.pass(0, [&] { probe->loss_of(at::full({1}, gradient)).backward(); });
    if (!stepper.step().skipped) ++applied;
  }
  EXPECT_EQ(used, (Values{0.5, 0.5, 0.75, 0.75, 1.0}));
  EXPECT_EQ(probe->weight.item<float>(), 8 - 0.5F - 0.5F - 0.75F - 1.0F);
}

}  // namespace
}  // namespace equigrad::reference
