#include "engine/schedule/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>

#include "engine/config/suggest.hpp"
#include "engine/error.hpp"

namespace equigrad::schedule {
namespace {

using Kind = SchedulerConfig::Kind;
using PerGroup = SchedulerConfig::PerGroup;

constexpr double kMostIterations = 9007199254740992.0;  // 2^53: every one is exact in a double

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

// One value for each group.
PerGroup for_groups(const char* name, const PerGroup& values, std::size_t groups) {
  if (values.size() == 1) return PerGroup(groups, values[0]);
  if (values.size() == groups) return values;
  throw Error("scheduler.params." + std::string(name),
              "expected 1 value or one for each of the " + std::to_string(groups) +
                  " parameter groups, got " + std::to_string(values.size()) +
                  ". Give one number for all groups, or a list of that length.");
}

// DeepSpeed's operations: lerp, which is exact at both ends, has other bits.
double between(double from, double to, double at) { return from + (to - from) * at; }

PerGroup between(const PerGroup& from, const PerGroup& to, double at) {
  PerGroup result(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) result[i] = between(from[i], to[i], at);
  return result;
}

PerGroup times(PerGroup values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

std::string shown(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// That an update can use them.
void require_usable(const Rates& rates, std::int64_t i) {
  const std::string after = "iteration " + std::to_string(i);
  for (const double lr : rates.lr)
    if (!std::isfinite(static_cast<float>(lr)))
      throw Error("scheduler", "expected a learning rate that fp32 can hold at " + after +
                                   ", got " + shown(lr) + ". Lower the scheduler's rates.");
  for (const double beta1 : rates.beta1)
    if (!(beta1 >= 0.0 && beta1 < 1.0))
      throw Error("scheduler.params.decay_mom_rate",
                  "expected it to leave beta1 below 1 at " + after + ", got " + shown(beta1) +
                      ". Lower it, raise decay_step_size, or end the training earlier.");
}

class Iterations : public Schedule {
 public:
  Iterations(const SchedulerConfig& config, const char* keyword)
      : config_(config), keyword_(keyword), iteration_(config.last_batch_iteration) {}

  Rates current() const override { return at(iteration_); }
  void check(const LrKeywords& lr_kwargs) const override { next(lr_kwargs); }
  void step(const LrKeywords& lr_kwargs) override { iteration_ = next(lr_kwargs); }
  std::int64_t last_batch_iteration() const override { return iteration_; }

 protected:
  virtual Rates at(std::int64_t i) const = 0;
  const SchedulerConfig& config() const { return config_; }

 private:
  // The iteration that step goes to, whose rates an update can use.
  std::int64_t next(const LrKeywords& lr_kwargs) const {
    std::int64_t i = iteration_ + 1;
    for (const auto& [name, value] : lr_kwargs) {
      if (name != keyword_)
        throw Error("engine.step", "expected " + std::string(name_of(config_.kind)) +
                                       "'s keyword \"" + keyword_ + "\" in lr_kwargs, got \"" +
                                       name + "\"." + hint(name));
      if (!(value >= 0.0 && value <= kMostIterations && value == std::trunc(value)))
        throw Error("engine.step", "expected lr_kwargs \"" + name +
                                       "\" to be a whole number from 0 to 2^53, got " +
                                       shown(value) + ". Give the iteration to go to.");
      i = static_cast<std::int64_t>(value);
    }
    require_usable(at(i), i);
    return i;
  }

  std::string hint(const std::string& name) const {
    const std::string nearest = did_you_mean(name, {keyword_});
    return nearest.empty() ? " Rename it, or drop it." : nearest;
  }

  const SchedulerConfig config_;
  const std::string keyword_;
  std::int64_t iteration_;
};

// WarmupLR, WarmupDecayLR, WarmupCosineLR.
class Warmup : public Iterations {
 public:
  Warmup(const SchedulerConfig& config, const PerGroup& group_lr)
      : Iterations(config, "last_batch_iteration"),
        steps_(std::max<std::int64_t>(2, config.warmup_num_steps)),
        after_(std::max<std::int64_t>(1, config.total_num_steps - steps_)) {
    const std::size_t groups = group_lr.size();
    if (config.kind == Kind::WarmupCosineLr) {
      min_ = PerGroup(groups, 0.0);
      max_ = group_lr;
      return;
    }
    min_ = for_groups("warmup_min_lr", config.warmup_min_lr, groups);
    max_ = config.warmup_max_lr.empty() ? group_lr
                                        : for_groups("warmup_max_lr", config.warmup_max_lr, groups);
  }

 protected:
  Rates at(std::int64_t i) const override { return {between(min_, max_, height(i)), {}}; }

 private:
  double height(std::int64_t i) const {
    if (i < 0) return 0.0;
    const bool by_ratio = config().kind == Kind::WarmupCosineLr;
    if (i < steps_) return by_ratio ? between(config().warmup_min_ratio, 1.0, warm(i)) : warm(i);
    if (by_ratio) return cosine(i);
    if (config().kind == Kind::WarmupLr) return 1.0;
    return std::max(0.0, ratio(config().total_num_steps - i, after_));
  }

  double warm(std::int64_t i) const {
    if (config().warmup_type == SchedulerConfig::WarmupType::Linear) return ratio(i, steps_);
    return 1.0 / std::log(static_cast<double>(steps_)) * std::log(static_cast<double>(i + 1));
  }

  double cosine(std::int64_t i) const {
    const double progress = std::min(1.0, ratio(i - steps_ + 1, after_));
    const double fall = (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
    return between(config().cos_min_ratio, 1.0, fall);
  }

  const std::int64_t steps_;  // n: ln(1) would divide by 0
  const std::int64_t after_;
  PerGroup min_, max_;
};

class OneCycle : public Iterations {
 public:
  OneCycle(const SchedulerConfig& config, std::size_t groups)
      : Iterations(config, "batch_iteration"),
        first_(config.cycle_first_step_size),
        second_(config.cycle_second_step_size.value_or(first_)),
        second_stairs_(config.cycle_second_stair_count.value_or(config.cycle_first_stair_count)),
        min_lr_(for_groups("cycle_min_lr", config.cycle_min_lr, groups)),
        max_lr_(for_groups("cycle_max_lr", config.cycle_max_lr, groups)) {
    if (!config.cycle_momentum) return;
    min_beta1_ = for_groups("cycle_min_mom", config.cycle_min_mom, groups);
    max_beta1_ = for_groups("cycle_max_mom", config.cycle_max_mom, groups);
  }

 protected:
  Rates at(std::int64_t i) const override {
    const std::int64_t cycle = first_ + second_;
    if (i < 0) return {min_lr_, min_beta1_};
    if (i < cycle) {
      const double scale = scale_of(i + 1);
      return {between(min_lr_, max_lr_, scale), between(max_beta1_, min_beta1_, scale)};
    }
    if (config().decay_step_size == 0) return {min_lr_, max_beta1_};
    const double decays = ratio(i - cycle + 1, config().decay_step_size);
    Rates rates{min_lr_, times(max_beta1_, 1.0 + config().decay_mom_rate * decays)};
    for (double& lr : rates.lr) lr /= 1.0 + config().decay_lr_rate * decays;
    return rates;
  }

 private:
  // 0 at both ends of the cycle, 1 where its halves meet. A second half of 0 steps falls at once.
  double scale_of(std::int64_t batch) const {
    const std::int64_t cycle = first_ + second_;
    if (batch >= cycle) return 0.0;
    // The part of the cycle that is over is rounded as 1 + part, as DeepSpeed does.
    const double part = (1.0 + ratio(batch, cycle)) - 1.0, middle = ratio(first_, cycle);
    const bool rises = part <= middle;
    const std::int64_t stairs = rises ? config().cycle_first_stair_count : second_stairs_;
    if (stairs == 0) return rises ? part / middle : (part - 1.0) / (middle - 1.0);
    return batch <= first_ ? stair(batch, first_, stairs) : stair(cycle - batch, second_, stairs);
  }

  static double stair(std::int64_t batch, std::int64_t size, std::int64_t stairs) {
    // The product is rounded only beyond 2^53, so a stair that is reached is never missed below.
    const double reached = static_cast<double>(batch) * static_cast<double>(stairs);
    return std::floor(reached / static_cast<double>(size)) / static_cast<double>(stairs);
  }

  const std::int64_t first_, second_, second_stairs_;
  const PerGroup min_lr_, max_lr_;
  PerGroup min_beta1_, max_beta1_;
};

class RangeTest : public Iterations {
 public:
  RangeTest(const SchedulerConfig& config, std::size_t groups)
      : Iterations(config, "batch_iteration"),
        min_(for_groups("lr_range_test_min_lr", config.lr_range_test_min_lr, groups)) {}

 protected:
  Rates at(std::int64_t i) const override {
    const std::int64_t size = config().lr_range_test_step_size;
    const double intervals =
        config().lr_range_test_staircase ? static_cast<double>((i + 1) / size) : ratio(i + 1, size);
    return {times(min_, 1.0 + config().lr_range_test_step_rate * intervals), {}};
  }

 private:
  const PerGroup min_;
};

std::unique_ptr<Schedule> of_kind(const SchedulerConfig& config, const PerGroup& group_lr) {
  switch (config.kind) {
    case Kind::OneCycle:
      return std::make_unique<OneCycle>(config, group_lr.size());
    case Kind::LrRangeTest:
      return std::make_unique<RangeTest>(config, group_lr.size());
    case Kind::WarmupLr:
    case Kind::WarmupDecayLr:
    case Kind::WarmupCosineLr:
      break;
  }
  return std::make_unique<Warmup>(config, group_lr);
}

}  // namespace

std::unique_ptr<Schedule> make_schedule(const SchedulerConfig& config,
                                        const std::vector<double>& group_lr) {
  auto schedule = of_kind(config, group_lr);
  require_usable(schedule->current(), config.last_batch_iteration);
  return schedule;
}

}  // namespace equigrad::schedule
