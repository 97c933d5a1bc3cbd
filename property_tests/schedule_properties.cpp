// Relations that every schedule keeps, for any parameters.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/error.hpp"
#include "engine/schedule/progressive_layer_drop.hpp"
#include "engine/schedule/schedule.hpp"

namespace equigrad::schedule {
namespace {

using Kind = SchedulerConfig::Kind;

// A rate from 0 to 1, of few or of many digits.
double any_rate() {
  const auto bits = static_cast<double>(*rc::gen::inRange<std::int64_t>(0, (1LL << 40) + 1));
  return *rc::gen::element(0.0, 1.0, 0.5, 0.001, bits / static_cast<double>(1LL << 40));
}

SchedulerConfig any_config(Kind kind) {
  SchedulerConfig config;
  config.kind = kind;
  const double one = any_rate(), other = any_rate();
  config.warmup_min_lr = config.cycle_min_lr = config.lr_range_test_min_lr = {std::min(one, other)};
  config.warmup_max_lr = config.cycle_max_lr = {std::max(one, other)};
  config.warmup_num_steps = *rc::gen::inRange<std::int64_t>(1, 60);
  config.warmup_type =
      *rc::gen::element(SchedulerConfig::WarmupType::Log, SchedulerConfig::WarmupType::Linear);
  config.total_num_steps = config.warmup_num_steps + *rc::gen::inRange<std::int64_t>(0, 60);
  config.warmup_min_ratio = any_rate();
  config.cos_min_ratio = any_rate();
  config.cycle_first_step_size = *rc::gen::inRange<std::int64_t>(1, 60);
  config.cycle_second_step_size = *rc::gen::inRange<std::int64_t>(0, 60);
  config.cycle_first_stair_count = *rc::gen::inRange<std::int64_t>(0, 9);
  config.cycle_second_stair_count = *rc::gen::inRange<std::int64_t>(0, 9);
  config.decay_step_size = *rc::gen::inRange<std::int64_t>(0, 9);
  config.decay_lr_rate = any_rate();
  config.lr_range_test_step_size = *rc::gen::inRange<std::int64_t>(1, 60);
  config.lr_range_test_step_rate = any_rate();
  config.lr_range_test_staircase = *rc::gen::arbitrary<bool>();
  return config;
}

Kind any_kind() {
  return *rc::gen::element(Kind::WarmupLr, Kind::WarmupDecayLr, Kind::WarmupCosineLr,
                           Kind::OneCycle, Kind::LrRangeTest);
}

const char* keyword_of(Kind kind) {
  return kind == Kind::OneCycle || kind == Kind::LrRangeTest ? "batch_iteration"
                                                             : "last_batch_iteration";
}

// Element u is what update u uses.
std::vector<Rates> rates_of(const SchedulerConfig& config, std::int64_t updates) {
  const auto schedule = make_schedule(config, {0.75});
  std::vector<Rates> rates;
  for (std::int64_t update = 0; update < updates; ++update) {
    rates.push_back(schedule->current());
    schedule->step();
  }
  return rates;
}

std::vector<double> lrs_of(const SchedulerConfig& config, std::int64_t updates) {
  std::vector<double> lrs;
  for (const Rates& rates : rates_of(config, updates)) lrs.push_back(rates.lr.at(0));
  return lrs;
}

using Place = std::vector<double>::difference_type;

RC_GTEST_PROP(Warmup, RisesFromMinAndStaysAtMax, ()) {
  const SchedulerConfig config = any_config(Kind::WarmupLr);
  const std::vector<double> lrs = lrs_of(config, 150);
  RC_ASSERT(lrs[0] == config.warmup_min_lr[0] && lrs[1] == lrs[0]);
  RC_ASSERT(std::is_sorted(lrs.begin(), lrs.end()));
  const auto warm = std::max<std::int64_t>(2, config.warmup_num_steps) + 1;
  RC_ASSERT(std::all_of(lrs.begin() + static_cast<Place>(warm), lrs.end(),
                        [&](double lr) { return lr == config.warmup_max_lr[0]; }));
}

RC_GTEST_PROP(WarmupDecay, RisesThenFallsToMinAndNeverBelow, ()) {
  const SchedulerConfig config = any_config(Kind::WarmupDecayLr);
  const std::vector<double> lrs = lrs_of(config, 200);
  const std::int64_t warm = std::max<std::int64_t>(2, config.warmup_num_steps);
  const bool reaches_max = config.total_num_steps > warm;  // else it falls at once
  const auto peak = lrs.begin() + static_cast<Place>(warm + (reaches_max ? 1 : 0));
  RC_ASSERT(std::is_sorted(lrs.begin(), peak + 1));
  RC_ASSERT(std::is_sorted(lrs.rbegin(), std::make_reverse_iterator(peak)));
  RC_ASSERT(!reaches_max || *peak == config.warmup_max_lr[0]);
  RC_ASSERT(*std::min_element(lrs.begin(), lrs.end()) == config.warmup_min_lr[0]);
  RC_ASSERT(lrs[static_cast<std::size_t>(std::max<std::int64_t>(2, config.total_num_steps) + 1)] ==
            config.warmup_min_lr[0]);
}

RC_GTEST_PROP(WarmupCosine, FallsToItsFloorAndStaysThere, ()) {
  const SchedulerConfig config = any_config(Kind::WarmupCosineLr);
  const std::vector<double> lrs = lrs_of(config, 200);
  const auto warm = static_cast<Place>(std::max<std::int64_t>(2, config.warmup_num_steps)) + 1;
  RC_ASSERT(lrs[0] == 0.0);
  RC_ASSERT(std::is_sorted(lrs.begin(), lrs.begin() + warm));
  RC_ASSERT(std::is_sorted(lrs.rbegin(), std::make_reverse_iterator(lrs.begin() + warm)));
  RC_ASSERT(lrs.back() == 0.75 * config.cos_min_ratio);
}

RC_GTEST_PROP(OneCycle, IsSymmetricWithEqualHalvesAndMomentumMirrorsIt, ()) {
  SchedulerConfig config = any_config(Kind::OneCycle);
  config.cycle_second_step_size = config.cycle_first_step_size;
  config.cycle_second_stair_count = config.cycle_first_stair_count;
  const std::int64_t cycle = 2 * config.cycle_first_step_size;
  const std::vector<Rates> rates = rates_of(config, cycle + 1);
  const auto at = [&](std::int64_t update) { return rates[static_cast<std::size_t>(update)]; };
  for (std::int64_t update = 0; update <= cycle; ++update)
    RC_ASSERT(at(update).lr == at(cycle - update).lr);
  for (std::int64_t update = 1; update < cycle; ++update)
    RC_ASSERT(at(update).beta1 == at(cycle - update).beta1);
  RC_ASSERT(at(cycle / 2).lr == config.cycle_max_lr);
  RC_ASSERT(at(cycle / 2).beta1 == config.cycle_min_mom);
  RC_ASSERT(at(cycle).lr == config.cycle_min_lr && at(cycle).beta1 == config.cycle_max_mom);
}

RC_GTEST_PROP(OneCycle, StaysBetweenItsBoundsAndDecaysAfterTheCycle, ()) {
  const SchedulerConfig config = any_config(Kind::OneCycle);
  const std::int64_t cycle = config.cycle_first_step_size + *config.cycle_second_step_size;
  const std::vector<Rates> rates = rates_of(config, cycle + 40);
  for (std::int64_t update = 0; update < cycle + 40; ++update) {
    const Rates& now = rates[static_cast<std::size_t>(update)];
    RC_ASSERT(now.lr[0] <= config.cycle_max_lr[0]);
    RC_ASSERT(now.beta1[0] >= 0.8 && now.beta1[0] <= 0.9);
    if (update <= cycle)
      RC_ASSERT(now.lr[0] >= config.cycle_min_lr[0]);
    else
      RC_ASSERT(now.lr[0] <= rates[static_cast<std::size_t>(update - 1)].lr[0]);
  }
}

// Only the rounding of 1 + rate (i + 1) / size lies between a stair and the line it cuts.
RC_GTEST_PROP(RangeTest, StairsLieOnTheLineAndNeverAboveIt, ()) {
  SchedulerConfig config = any_config(Kind::LrRangeTest);
  config.lr_range_test_staircase = false;
  const std::vector<double> line = lrs_of(config, 200);
  config.lr_range_test_staircase = true;
  const std::vector<double> stairs = lrs_of(config, 200);
  RC_ASSERT(std::is_sorted(line.begin(), line.end()));
  for (std::size_t update = 0; update < line.size(); ++update) {
    RC_ASSERT(stairs[update] <= line[update]);
    const auto within = update % static_cast<std::size_t>(config.lr_range_test_step_size);
    RC_ASSERT(stairs[update] == line[update - within]);
  }
}

RC_GTEST_PROP(EverySchedule, JumpsToWhereSteppingLeadsAndGoesOnFromThere, ()) {
  const Kind kind = any_kind();
  const SchedulerConfig config = any_config(kind);
  const auto target = *rc::gen::inRange<std::int64_t>(0, 150);
  const auto stepped = make_schedule(config, {0.75});
  while (stepped->last_batch_iteration() < target) stepped->step();
  const auto jumped = make_schedule(config, {0.75});
  for (int detour = *rc::gen::inRange(0, 200); detour > 0; --detour) jumped->step();
  jumped->step({{keyword_of(kind), static_cast<double>(target)}});
  SchedulerConfig resumed_config = config;
  resumed_config.last_batch_iteration = target;
  const auto resumed = make_schedule(resumed_config, {0.75});
  for (int update = 0; update < 5; ++update) {
    RC_ASSERT(jumped->current() == stepped->current());
    RC_ASSERT(resumed->current() == stepped->current());
    jumped->step();
    stepped->step();
    resumed->step();
  }
}

RC_GTEST_PROP(EverySchedule, RefusesAnyOtherKeywordAndStaysWhereItIs, ()) {
  const Kind kind = any_kind();
  const auto schedule = make_schedule(any_config(kind), {0.75});
  for (int update = *rc::gen::inRange(0, 50); update > 0; --update) schedule->step();
  const std::int64_t before = schedule->last_batch_iteration();
  const auto name = *rc::gen::suchThat(rc::gen::arbitrary<std::string>(),
                                       [&](const auto& text) { return text != keyword_of(kind); });
  RC_ASSERT_THROWS_AS(schedule->check({{name, 3.0}}), Error);
  RC_ASSERT_THROWS_AS(schedule->step({{name, 3.0}}), Error);
  RC_ASSERT(schedule->last_batch_iteration() == before);
}

RC_GTEST_PROP(LayerDrop, FallsWithTheStepFromOneToItsLimit, ()) {
  const double theta_bar = any_rate(), gamma = any_rate();
  ProgressiveLayerDrop drop({true, theta_bar, gamma});
  double last = 1.0;
  for (std::int64_t step = 0; step < 50; ++step) {
    drop.update(step);
    RC_ASSERT(drop.theta() <= last && drop.theta() >= theta_bar);
    last = drop.theta();
  }
  drop.update(0);
  RC_ASSERT(drop.theta() == 1.0);
}

}  // namespace
}  // namespace equigrad::schedule
