// 16. Its parts: schedules, each against its page's formula.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "conformance/contract/parts/drawn.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/config/config.hpp"
#include "engine/schedule/schedule.hpp"

namespace equigrad::conformance::contract {
namespace {

using Type = SchedulerConfig::WarmupType;
using schedule::Rates;

const std::vector<double> kGroupLr = {0.3, 0.07};

double of_group(const std::vector<double>& values, std::size_t group) {
  return values.size() == 1 ? values[0] : values[group];
}

// What part of the way up the rise of `steps` updates is after update i.
double risen(const SchedulerConfig& config, double i, double steps) {
  return config.warmup_type == Type::Linear ? i / steps : 1 / std::log(steps) * std::log(i + 1);
}

double warmup_of(const SchedulerConfig& config, std::size_t group, int64_t at) {
  const auto i = static_cast<double>(at), total = static_cast<double>(config.total_num_steps),
             n = std::max(2.0, static_cast<double>(config.warmup_num_steps));
  double part = 0;
  if (config.kind == SchedulerConfig::Kind::WarmupCosineLr) {
    const double progress = std::min(1.0, (i - n + 1) / std::max(1.0, total - n));
    const double fall = (1 + std::cos(std::numbers::pi * progress)) / 2;
    if (at >= 0 && i < n)
      part = config.warmup_min_ratio + (1 - config.warmup_min_ratio) * risen(config, i, n);
    if (i >= n) part = config.cos_min_ratio + (1 - config.cos_min_ratio) * fall;
    return kGroupLr[group] * part;
  }
  if (at >= 0 && i < n) part = risen(config, i, n);
  if (i >= n) part = 1;
  if (i >= n && config.kind == SchedulerConfig::Kind::WarmupDecayLr)
    part = std::max(0.0, (total - i) / std::max(1.0, total - n));
  const double low = of_group(config.warmup_min_lr, group);
  const double high =
      config.warmup_max_lr.empty() ? kGroupLr[group] : of_group(config.warmup_max_lr, group);
  return low + (high - low) * part;
}

// How far from its ends the cycle is, as DeepSpeed rounds it; stairs in whole numbers.
double cycled(const SchedulerConfig& config, int64_t batch) {
  const int64_t first = config.cycle_first_step_size,
                second = config.cycle_second_step_size.value_or(first),
                stairs = config.cycle_first_stair_count,
                later_stairs = config.cycle_second_stair_count.value_or(stairs);
  const auto total = static_cast<double>(first + second);
  const double turns = 1 + static_cast<double>(batch) / total, part = turns - std::floor(turns),
               middle = static_cast<double>(first) / total;
  if (batch == first + second) return 0;
  if (batch <= first && stairs > 0)
    return static_cast<double>(batch * stairs / first) / static_cast<double>(stairs);
  if (batch > first && later_stairs > 0)
    return static_cast<double>((first + second - batch) * later_stairs / second) /
           static_cast<double>(later_stairs);
  return part <= middle ? part / middle : (part - 1) / (middle - 1);
}

// The rate and beta1.
std::pair<double, double> cycle_of(const SchedulerConfig& config, std::size_t group, int64_t i) {
  const int64_t cycle = config.cycle_first_step_size +
                        config.cycle_second_step_size.value_or(config.cycle_first_step_size);
  const double low = of_group(config.cycle_min_lr, group),
               high = of_group(config.cycle_max_lr, group),
               least = of_group(config.cycle_min_mom, group),
               most = of_group(config.cycle_max_mom, group);
  if (i < 0) return {low, least};
  if (i < cycle) {
    const double scale = cycled(config, i + 1);
    return {low + (high - low) * scale, most - (most - least) * scale};
  }
  if (config.decay_step_size == 0) return {low, most};
  const double decays =
      static_cast<double>(i - cycle + 1) / static_cast<double>(config.decay_step_size);
  return {low / (1 + config.decay_lr_rate * decays), most * (1 + config.decay_mom_rate * decays)};
}

double range_of(const SchedulerConfig& config, std::size_t group, int64_t i) {
  const int64_t size = config.lr_range_test_step_size;
  const double intervals = config.lr_range_test_staircase
                               ? static_cast<double>((i + 1) / size)
                               : static_cast<double>(i + 1) / static_cast<double>(size);
  return of_group(config.lr_range_test_min_lr, group) *
         (1 + config.lr_range_test_step_rate * intervals);
}

Rates rates_of(const SchedulerConfig& config, int64_t i) {
  Rates rates;
  for (std::size_t group = 0; group < kGroupLr.size(); ++group) {
    if (config.kind == SchedulerConfig::Kind::OneCycle) {
      const auto [lr, beta1] = cycle_of(config, group, i);
      rates.lr.push_back(lr);
      if (config.cycle_momentum) rates.beta1.push_back(beta1);
    } else {
      rates.lr.push_back(config.kind == SchedulerConfig::Kind::LrRangeTest
                             ? range_of(config, group, i)
                             : warmup_of(config, group, i));
    }
  }
  return rates;
}

std::vector<SchedulerConfig> warmups() {
  std::vector<SchedulerConfig> all;
  for (const auto kind : {SchedulerConfig::Kind::WarmupLr, SchedulerConfig::Kind::WarmupDecayLr,
                          SchedulerConfig::Kind::WarmupCosineLr})
    for (const auto type : {Type::Log, Type::Linear})
      for (const auto& [steps, total] : {std::pair{0, 9}, {1, 2}, {2, 3}, {7, 20}, {5, 4}, {6, 6}})
        all.push_back({.kind = kind,
                       .warmup_num_steps = steps,
                       .warmup_type = type,
                       .total_num_steps = total,
                       .warmup_min_ratio = 0.1 * steps,
                       .cos_min_ratio = 0.01 * total});
  for (auto kind : {SchedulerConfig::Kind::WarmupLr, SchedulerConfig::Kind::WarmupDecayLr}) {
    SchedulerConfig config{.kind = kind, .warmup_num_steps = 5, .total_num_steps = 12};
    config.warmup_min_lr = {0.01};
    config.warmup_max_lr = {0.9, 0.2};
    all.push_back(config);
    config.warmup_min_lr = {0.01, 0.05};
    config.warmup_max_lr = {0.7};
    all.push_back(config);
  }
  return all;
}

std::vector<SchedulerConfig> cycles() {
  const SchedulerConfig plain{.kind = SchedulerConfig::Kind::OneCycle,
                              .cycle_min_lr = {0.01},
                              .cycle_max_lr = {0.4, 0.3},
                              .cycle_first_step_size = 7};
  std::vector<SchedulerConfig> all(8, plain);
  all[1].cycle_second_step_size = 3;
  all[2].cycle_second_step_size = 0;
  all[3].cycle_first_stair_count = 3;
  all[4].cycle_first_stair_count = 2;
  all[4].cycle_second_stair_count = 5;
  all[4].cycle_second_step_size = 9;
  all[5].cycle_second_stair_count = 2;
  all[5].decay_step_size = 4;
  all[5].decay_lr_rate = 0.5;
  all[5].cycle_min_mom = {0.5, 0.6};
  all[6].decay_step_size = 1;
  all[6].decay_mom_rate = -0.01;
  all[6].cycle_max_mom = {0.95, 0.9};
  all[6].cycle_first_stair_count = 4;
  all[6].cycle_second_stair_count = 0;
  all[7].cycle_momentum = false;
  all[7].cycle_first_step_size = 1;
  return all;
}

std::vector<SchedulerConfig> ranges() {
  std::vector<SchedulerConfig> all(
      3, {.kind = SchedulerConfig::Kind::LrRangeTest, .lr_range_test_step_size = 4});
  all[1].lr_range_test_staircase = true;
  all[1].lr_range_test_min_lr = {0.02, 0.03};
  all[2].lr_range_test_step_rate = 0.25;
  all[2].lr_range_test_step_size = 1;
  return all;
}

std::string keyword_of(const SchedulerConfig& config) {
  const bool is_batch = config.kind == SchedulerConfig::Kind::OneCycle ||
                        config.kind == SchedulerConfig::Kind::LrRangeTest;
  return is_batch ? "batch_iteration" : "last_batch_iteration";
}

// At every update, after a jump, and of one that goes on from there.
void check_schedule(Play& play, SchedulerConfig config, Draws& draws) {
  const auto one = schedule::make_schedule(config, kGroupLr);
  const auto check = [&](int64_t i) {
    const Rates want = rates_of(config, play.fault() ? i + 1 : i), got = one->current();
    play.check(std::string(name_of(config.kind)) + " at " + std::to_string(i) + " has rate " +
                   std::to_string(want.lr[0]) + ", got " + std::to_string(got.lr.at(0)),
               got == want && one->last_batch_iteration() == i);
  };
  for (int64_t i = -1; i < 25; ++i) {
    check(i);
    one->check({});
    one->step();
  }
  for (int jump = 0; jump < 3; ++jump) {
    const auto to = static_cast<int64_t>(draws() % 30);
    const schedule::LrKeywords keywords = {{keyword_of(config), static_cast<double>(to)}};
    const auto before = one->last_batch_iteration();
    one->check(keywords);
    check(before);
    one->step(keywords);
    check(to);
    config.last_batch_iteration = to;
    const auto next = schedule::make_schedule(config, kGroupLr);
    play.check("a schedule goes on from where it is told",
               next->current() == rates_of(config, to) && next->last_batch_iteration() == to);
  }
}

void check_keywords(Play& play, const SchedulerConfig& config) {
  const auto one = schedule::make_schedule(config, kGroupLr);
  const std::string keyword = keyword_of(config), name = name_of(config.kind);
  const auto refuse = [&](const std::string& words, const schedule::LrKeywords& keywords) {
    play.refuse("[engine.step] expected " + words, [&] { one->check(keywords); });
    play.refuse("[engine.step] expected " + words, [&] { one->step(keywords); });
  };
  const std::string known = name + "'s keyword \"" + keyword + "\" in lr_kwargs, got \"";
  refuse(known + "epoch\". Rename it, or drop it.", {{"epoch", 3}});
  refuse(known + keyword + "s\". Did you mean \"" + keyword + "\"?", {{keyword + "s", 3}});
  const std::string whole =
      "lr_kwargs \"" + keyword + "\" to be a whole number from 0 to 2^53, got ";
  refuse(whole + "-1. Give the iteration to go to.", {{keyword, -1}});
  refuse(whole + "0.5", {{keyword, 0.5}});
  refuse(whole + "9.0072e+15", {{keyword, 0x1p53 + 2}});
  refuse(whole + "nan", {{keyword, std::nan("")}});
  play.check("a keyword that is refused moves nothing",
             one->last_batch_iteration() == -1 && one->current() == rates_of(config, -1));
  one->step({{keyword, 0}});
  play.check("iteration 0 may be given", one->last_batch_iteration() == 0);
  one->step({{keyword, 0x1p53}});
  play.check("iteration 2^53 may be given", one->last_batch_iteration() == int64_t{1} << 53);
}

void check_lists(Play& play) {
  using Member = SchedulerConfig::PerGroup SchedulerConfig::*;
  struct List {
    std::string name;
    SchedulerConfig config;
    Member member;
  };
  const auto cycle = cycles()[0];
  const std::vector<List> lists = {
      {"warmup_min_lr", warmups()[0], &SchedulerConfig::warmup_min_lr},
      {"warmup_max_lr", warmups()[0], &SchedulerConfig::warmup_max_lr},
      {"cycle_min_lr", cycle, &SchedulerConfig::cycle_min_lr},
      {"cycle_max_lr", cycle, &SchedulerConfig::cycle_max_lr},
      {"cycle_min_mom", cycle, &SchedulerConfig::cycle_min_mom},
      {"cycle_max_mom", cycle, &SchedulerConfig::cycle_max_mom},
      {"lr_range_test_min_lr", ranges()[0], &SchedulerConfig::lr_range_test_min_lr}};
  for (const auto& list : lists) {
    auto config = list.config;
    config.*list.member = {0.1, 0.2, 0.3};
    play.refuse("[scheduler.params." + list.name +
                    "] expected 1 value or one for each of the 2 parameter groups, got 3. Give one "
                    "number for all groups",
                [&] { schedule::make_schedule(config, kGroupLr); });
  }
}

// Rates that no update can use: refused before the iteration that has them, and when it is made.
void check_unusable(Play& play) {
  SchedulerConfig range{.kind = SchedulerConfig::Kind::LrRangeTest,
                        .lr_range_test_min_lr = {1, 1e38},
                        .lr_range_test_step_size = 1};
  const auto one = schedule::make_schedule(range, kGroupLr);
  one->step();
  one->step();
  play.refuse(
      "[scheduler] expected a learning rate that fp32 can hold at iteration 2, got 4e+38. Lower",
      [&] { one->step(); });
  play.check("a step that is refused stays where it was", one->last_batch_iteration() == 1);
  range.last_batch_iteration = 7;
  play.refuse("fp32 can hold at iteration 7", [&] { schedule::make_schedule(range, kGroupLr); });
  for (const double rate : {0.125, -1.0}) {
    auto cycle = cycles()[0];
    cycle.cycle_first_step_size = 1;
    cycle.decay_step_size = 1;
    cycle.cycle_max_mom = {0.5, 0.8};
    cycle.decay_mom_rate = rate;
    const auto other = schedule::make_schedule(cycle, kGroupLr);
    other->step({{"batch_iteration", 2}});
    play.refuse(
        "[scheduler.params.decay_mom_rate] expected it to leave beta1 below 1 at iteration "
        "3, got " +
            std::string(rate > 0 ? "1." : "-0.5."),
        [&] { other->check({}); });
  }
}

void schedules(Play& play) {
  if (play.group()) {
    Draws draws(play.context().seed);
    for (const auto& all : {warmups(), cycles(), ranges()})
      for (const auto& config : all) check_schedule(play, config, draws);
    for (const auto& config : {warmups()[0], cycles()[0], ranges()[0]})
      check_keywords(play, config);
    check_lists(play);
    check_unusable(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> rate_schedules() {
  return {of_part("schedules_by_formula", "every schedule is its page's at every update, by group",
                  "the next update's rates are expected", schedules)};
}

}  // namespace equigrad::conformance::contract
