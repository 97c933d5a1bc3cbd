// Relations that every schedule keeps, for any parameters; and every schedule beside the
// reference's, from a JSON with any keys given or left out.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/schedule/progressive_layer_drop.hpp"
#include "engine/schedule/schedule.hpp"
#include "reference/schedule.hpp"

namespace equigrad::schedule {
namespace {

using Kind = SchedulerConfig::Kind;

// A rate from 0 to 1 in steps of 2^-40: the sum of one and the difference of two is exact, so the
// end of a way is its bound.
double any_rate() {
  const auto bits = static_cast<double>(*rc::gen::inRange<std::int64_t>(0, (1LL << 40) + 1));
  return *rc::gen::element(0.0, 1.0, 0.5, bits / static_cast<double>(1LL << 40));
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

// The last part of a way by logarithms is ln n / ln n, whose roundings may leave it above 1: then
// the last step of the rise is above max, and the next one is max.
RC_GTEST_PROP(Warmup, RisesFromMinAndStaysAtMax, ()) {
  const SchedulerConfig config = any_config(Kind::WarmupLr);
  const std::vector<double> lrs = lrs_of(config, 150);
  RC_ASSERT(lrs[0] == config.warmup_min_lr[0] && lrs[1] == lrs[0]);
  const auto at_max =
      lrs.begin() + static_cast<Place>(std::max<std::int64_t>(2, config.warmup_num_steps)) + 1;
  RC_ASSERT(std::is_sorted(lrs.begin(), at_max));
  RC_ASSERT(
      std::all_of(at_max, lrs.end(), [&](double lr) { return lr == config.warmup_max_lr[0]; }));
  RC_ASSERT(config.warmup_type == SchedulerConfig::WarmupType::Log ||
            std::is_sorted(lrs.begin(), lrs.end()));
}

RC_GTEST_PROP(WarmupDecay, RisesThenFallsToMinAndNeverBelow, ()) {
  const SchedulerConfig config = any_config(Kind::WarmupDecayLr);
  const std::vector<double> lrs = lrs_of(config, 200);
  const std::int64_t warm = std::max<std::int64_t>(2, config.warmup_num_steps);
  const bool reaches_max = config.total_num_steps > warm;  // else it falls at once
  const auto peak = lrs.begin() + static_cast<Place>(warm + (reaches_max ? 1 : 0));
  RC_ASSERT(std::is_sorted(lrs.begin(), lrs.begin() + static_cast<Place>(warm + 1)));
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

// With a power of two, so that the parts of the cycle are exact.
RC_GTEST_PROP(OneCycle, IsSymmetricWithEqualHalvesAndMomentumMirrorsIt, ()) {
  SchedulerConfig config = any_config(Kind::OneCycle);
  config.cycle_first_step_size = std::int64_t{1} << *rc::gen::inRange(0, 7);
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

// ---- Beside the reference ----

using Json = nlohmann::json;
using reference::ScheduleKind;
using reference::ScheduleSpec;

// A schedule's keys, and what they mean to the reference.
struct Drawn {
  Json params = Json::object();
  ScheduleSpec spec;
};

// From 0 to below 1, of 53 bits, so that almost every operation on two of them rounds.
double any_fraction() {
  const auto bits = *rc::gen::inRange<std::int64_t>(0, 1LL << 53);
  return static_cast<double>(bits) / 0x1p53 * *rc::gen::element(1.0, 0.1, 1e-3);
}

bool any_bool() { return *rc::gen::arbitrary<bool>(); }

template <class Field, class Value>
void give(Drawn& drawn, const char* key, Field ScheduleSpec::*field, const Value& value) {
  drawn.params[key] = value;
  drawn.spec.*field = value;
}

template <class Field, class Value>
void perhaps(Drawn& drawn, const char* key, Field ScheduleSpec::*field, const Value& value) {
  if (any_bool()) give(drawn, key, field, value);
}

// A number for all groups, or a list with one for each.
void give_by_group(Drawn& drawn, const char* key, ScheduleSpec::PerGroup ScheduleSpec::*field,
                   std::size_t groups) {
  const bool is_list = any_bool();
  ScheduleSpec::PerGroup values;
  while (values.size() < (is_list ? groups : 1)) values.push_back(any_fraction());
  drawn.spec.*field = values;
  drawn.params[key] = is_list ? Json(values) : Json(values[0]);
}

void perhaps_by_group(Drawn& drawn, const char* key, ScheduleSpec::PerGroup ScheduleSpec::*field,
                      std::size_t groups) {
  if (any_bool()) give_by_group(drawn, key, field, groups);
}

void draw_warmup(Drawn& drawn, std::size_t groups) {
  ScheduleSpec& spec = drawn.spec;
  if (spec.kind == ScheduleKind::WarmupCosineLr) {
    perhaps(drawn, "warmup_min_ratio", &ScheduleSpec::warmup_min_ratio, any_fraction());
    perhaps(drawn, "cos_min_ratio", &ScheduleSpec::cos_min_ratio, any_fraction());
  } else {
    perhaps_by_group(drawn, "warmup_min_lr", &ScheduleSpec::warmup_min_lr, groups);
    perhaps_by_group(drawn, "warmup_max_lr", &ScheduleSpec::warmup_max_lr, groups);
  }
  perhaps(drawn, "warmup_num_steps", &ScheduleSpec::warmup_num_steps,
          *rc::gen::inRange<std::int64_t>(1, 60));
  if (any_bool()) {
    const bool is_linear = any_bool();
    drawn.params["warmup_type"] = is_linear ? "linear" : "log";
    spec.warmup_type = is_linear ? reference::WarmupType::Linear : reference::WarmupType::Log;
  }
  if (spec.kind != ScheduleKind::WarmupLr)
    give(drawn, "total_num_steps", &ScheduleSpec::total_num_steps,
         spec.warmup_num_steps + *rc::gen::inRange<std::int64_t>(0, 60));
}

void draw_cycle(Drawn& drawn, std::size_t groups) {
  const auto count = [](std::int64_t least, std::int64_t end) {
    return *rc::gen::inRange<std::int64_t>(least, end);
  };
  give_by_group(drawn, "cycle_min_lr", &ScheduleSpec::cycle_min_lr, groups);
  give_by_group(drawn, "cycle_max_lr", &ScheduleSpec::cycle_max_lr, groups);
  perhaps(drawn, "cycle_first_step_size", &ScheduleSpec::cycle_first_step_size, count(1, 60));
  perhaps(drawn, "cycle_second_step_size", &ScheduleSpec::cycle_second_step_size, count(0, 60));
  perhaps(drawn, "cycle_first_stair_count", &ScheduleSpec::cycle_first_stair_count, count(0, 9));
  perhaps(drawn, "cycle_second_stair_count", &ScheduleSpec::cycle_second_stair_count, count(0, 9));
  perhaps(drawn, "decay_step_size", &ScheduleSpec::decay_step_size, count(0, 90));
  perhaps(drawn, "decay_lr_rate", &ScheduleSpec::decay_lr_rate, any_fraction());
  perhaps(drawn, "cycle_momentum", &ScheduleSpec::cycle_momentum, any_bool());
  perhaps_by_group(drawn, "cycle_min_mom", &ScheduleSpec::cycle_min_mom, groups);
  perhaps_by_group(drawn, "cycle_max_mom", &ScheduleSpec::cycle_max_mom, groups);
  perhaps(drawn, "decay_mom_rate", &ScheduleSpec::decay_mom_rate, any_fraction());
}

void draw_range_test(Drawn& drawn, std::size_t groups) {
  perhaps_by_group(drawn, "lr_range_test_min_lr", &ScheduleSpec::lr_range_test_min_lr, groups);
  perhaps(drawn, "lr_range_test_step_size", &ScheduleSpec::lr_range_test_step_size,
          *rc::gen::inRange<std::int64_t>(1, 60));
  perhaps(drawn, "lr_range_test_step_rate", &ScheduleSpec::lr_range_test_step_rate, any_fraction());
  perhaps(drawn, "lr_range_test_staircase", &ScheduleSpec::lr_range_test_staircase, any_bool());
}

// Where an update goes on from: the beginning, or about a place where the schedule turns.
void draw_beginning(Drawn& drawn) {
  const ScheduleSpec& spec = drawn.spec;
  const std::int64_t first = spec.cycle_first_step_size;
  const auto turn =
      *rc::gen::element<std::int64_t>(0, spec.warmup_num_steps, spec.total_num_steps.value_or(0),
                                      first, first + spec.cycle_second_step_size.value_or(first));
  const auto after = *rc::gen::inRange<std::int64_t>(-75, 75);
  perhaps(drawn, "last_batch_iteration", &ScheduleSpec::last_batch_iteration,
          std::max<std::int64_t>(-1, turn + after));
}

Drawn any_schedule(ScheduleKind kind, std::size_t groups) {
  Drawn drawn;
  drawn.spec.kind = kind;
  if (kind == ScheduleKind::OneCycle)
    draw_cycle(drawn, groups);
  else if (kind == ScheduleKind::LrRangeTest)
    draw_range_test(drawn, groups);
  else
    draw_warmup(drawn, groups);
  draw_beginning(drawn);
  return drawn;
}

SchedulerConfig read_by_the_engine(const char* type, const Json& params) {
  const Json text = {{"train_micro_batch_size_per_gpu", 1},
                     {"optimizer", {{"type", "AdamW"}}},
                     {"scheduler", {{"type", type}, {"params", params}}}};
  return parse_config(text.dump(), 1).scheduler.value();
}

std::vector<std::uint64_t> bits_of(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits;
  for (const double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}

// No update can use it: the engine refuses to begin or to step there.
bool has_beta_of_one(const reference::Rates& rates) {
  return std::any_of(rates.beta1.begin(), rates.beta1.end(),
                     [](double beta1) { return beta1 >= 1.0; });
}

void follow(const char* type, const Drawn& drawn, const std::vector<double>& group_lr) {
  const SchedulerConfig config = read_by_the_engine(type, drawn.params);
  reference::Rates next = reference::rates(drawn.spec, group_lr, 0);
  if (has_beta_of_one(next)) {
    RC_ASSERT_THROWS_AS(make_schedule(config, group_lr), Error);
    return;
  }
  const auto schedule = make_schedule(config, group_lr);
  for (std::int64_t update = 0; update < 150; ++update) {
    const Rates got = schedule->current();
    if (bits_of(got.lr) != bits_of(next.lr) || bits_of(got.beta1) != bits_of(next.beta1)) {
      const Json both = {{"engine", {got.lr, got.beta1}}, {"reference", {next.lr, next.beta1}}};
      RC_FAIL(std::string(type) + " " + drawn.params.dump() + " at update " +
              std::to_string(update) + ": " + both.dump());
    }
    next = reference::rates(drawn.spec, group_lr, update + 1);
    if (has_beta_of_one(next)) {
      RC_ASSERT_THROWS_AS(schedule->step(), Error);
      return;
    }
    schedule->step();
  }
}

RC_GTEST_PROP(EverySchedule, HasTheReferencesRatesBitForBit, ()) {
  struct Type {
    const char* name;
    ScheduleKind kind;
  };
  for (const Type& type :
       {Type{"WarmupLR", ScheduleKind::WarmupLr},
        Type{"WarmupDecayLR", ScheduleKind::WarmupDecayLr},
        Type{"WarmupCosineLR", ScheduleKind::WarmupCosineLr},
        Type{"OneCycle", ScheduleKind::OneCycle}, Type{"LRRangeTest", ScheduleKind::LrRangeTest}}) {
    std::vector<double> group_lr;
    for (int group = *rc::gen::inRange(1, 4); group > 0; --group)
      group_lr.push_back(any_fraction());
    follow(type.name, any_schedule(type.kind, group_lr.size()), group_lr);
  }
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
