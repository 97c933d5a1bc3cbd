// 16. Its parts: loss scales, layer drop and divisors, each against its page's rule.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "conformance/contract/parts/drawn.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/config/config.hpp"
#include "engine/loss/divisors.hpp"
#include "engine/loss/loss_scaler.hpp"
#include "engine/schedule/progressive_layer_drop.hpp"

namespace equigrad::conformance::contract {
namespace {

// ---- Layer drop and divisors ----

void check_layer_drop(Play& play) {
  for (const double theta : {0.0, 0.3, 1.0})
    for (const double gamma : {0.0, 0.01, 2.0}) {
      schedule::ProgressiveLayerDrop drop({.enabled = true, .theta = theta, .gamma = gamma});
      play.check("all layers are kept before the first update",
                 drop.theta() == 1 && drop.state() == schedule::LayerDropState{true, 1});
      for (const int64_t step : {0, 1, 5, 400, 100000}) {
        drop.update(step);
        const double want = (1 - theta) * std::exp(-gamma * static_cast<double>(step)) + theta;
        play.check("theta(" + std::to_string(step) + ") is " + std::to_string(want) + ", got " +
                       std::to_string(drop.theta()),
                   std::fabs(drop.theta() - want) <= 4e-16 * want && drop.theta() >= theta &&
                       drop.state() == schedule::LayerDropState{true, drop.theta()});
      }
      drop.update(1);
      const double before = drop.theta();
      play.refuse(
          "[progressive_layer_drop.update] expected a global step of at least 0, got -1. Give",
          [&] { drop.update(-1); });
      play.check("a step that is refused changes nothing", drop.theta() == before);
    }
  const double infinite = std::numeric_limits<double>::infinity();
  const std::string where = "[progressive_layer_drop.";
  for (const auto& [theta, got] : {std::pair{-0.5, "-0.5"}, {1.5, "1.5"}, {std::nan(""), "nan"}})
    play.refuse(where + "theta] expected a probability from 0 to 1, got " + got, [theta = theta] {
      schedule::ProgressiveLayerDrop({.enabled = true, .theta = theta});
    });
  for (const auto& [gamma, got] : {std::pair{-0.5, "-0.5"}, {infinite, "inf"}})
    play.refuse(
        where + "gamma] expected a finite number of at least 0, got " + got,
        [gamma = gamma] { schedule::ProgressiveLayerDrop({.enabled = true, .gamma = gamma}); });
}

void check_divisors(Play& play) {
  using Averaging = AveragingConfig::Kind;
  const auto fp32 = [](double factor) { return double{static_cast<float>(factor)}; };
  for (const int world : {1, 3, 7})
    for (const int64_t steps : {1, 3, 10}) {
      const double ranks = world, passes = static_cast<double>(steps), f = 2.7;
      struct Row {
        Averaging kind;
        double before, after;
      };
      for (const auto& row : {Row{Averaging::AfterSum, 1, 1 / (passes * ranks)},
                              Row{Averaging::BeforeSum, 1 / ranks, 1 / passes},
                              Row{Averaging::Around, 1 / f, f / (passes * ranks)},
                              Row{Averaging::Never, 1, 1 / passes}}) {
        const AveragingConfig averaging{.kind = row.kind, .predivide_factor = f};
        play.check("a factor is its page's, rounded to fp32",
                   loss::factor_before_sum(averaging, world) == fp32(row.before) &&
                       loss::averaging_factor(averaging, steps, world) == fp32(row.after));
      }
      play.check("a pass that is not divided weighs as much as all",
                 loss::pass_weight(steps, true) == 1 && loss::pass_weight(steps, false) == passes);
    }
}

// ---- Loss scales ----

using Policy = LossScaleConfig::Policy;

// The documented rule for whoever holds gradients: what happened since the last change, and how
// often lately.
struct Simulated {
  LossScaleConfig config;
  double scale = std::ldexp(1.0, static_cast<int>(config.initial_scale_power));
  int64_t good = 0, forgiven = 0;
  std::set<int> holders = {};
  bool has_stepped = false, has_overflow = false;

  bool fails() const {
    return has_overflow && config.policy == Policy::DeepSpeed &&
           forgiven + 1 == config.hysteresis && scale == config.min_loss_scale;
  }
  // Whether this is an error.
  bool stepped(int engine, bool overflow) {
    holders.erase(engine);
    has_stepped = true;
    has_overflow = has_overflow || overflow;
    if (!holders.empty()) return false;
    const bool is_error = fails();
    change();
    return is_error;
  }
  void released(int engine) {
    holders.erase(engine);
    if (holders.empty() && has_stepped && !fails()) change();
  }
  void change() {
    const bool overflow = std::exchange(has_overflow, false);
    has_stepped = false;
    good = overflow ? 0 : good + 1;
    const bool deepspeed = config.policy == Policy::DeepSpeed;
    if (overflow && deepspeed) {
      if (forgiven + 1 < config.hysteresis)
        ++forgiven;
      else
        scale = std::max(scale / 2, config.min_loss_scale);
      return;
    }
    if (overflow) scale = std::max(scale / 2, 0x1p-126);
    if (overflow) return;
    const int64_t window = config.loss_scale_window, full = good - (deepspeed ? 1 : 0);
    const bool grows = full > 0 && full % window == 0;
    if (grows || config.consecutive_hysteresis) forgiven = 0;
    if (grows) scale = std::min(scale * 2, 0x1p127);
  }
};

// Some thousand events of up to three engines.
void check_scaler(Play& play, const LossScaleConfig& config, Draws& draws) {
  loss::LossScaler scaler(config);
  Simulated simulated{config};
  const auto overflows_in = 2 + draws() % 12;
  const std::array<int, 3> engines{};
  bool is_right = scaler.is_needed() && scaler.scale() == simulated.scale;
  for (int event = 0; event < 600 && is_right; ++event) {
    if (event == 300) simulated.scale *= play.fault() ? 2 : 1;
    const auto which = draws() % (event < 200 ? 1 : 3);
    const auto engine = static_cast<int>(which);
    const void* of = &engines[which];
    const auto kind = draws() % 8;
    const bool overflow = draws() % overflows_in == 0;
    bool has_thrown = false, is_error = false;
    if (kind < 2) {
      scaler.hold(of);
      simulated.holders.insert(engine);
    } else if (kind == 2) {
      scaler.released(of);
      simulated.released(engine);
    } else {
      is_error = simulated.stepped(engine, overflow);
      try {
        scaler.stepped(of, overflow);
      } catch (const Error& error) {
        const std::string text = error.what();
        has_thrown =
            text.find("[step] expected finite gradients at the smallest loss scale") == 0 &&
            text.find("(min_loss_scale), got an overflow. The model diverges") < text.size();
      }
    }
    is_right = scaler.scale() == simulated.scale && has_thrown == is_error;
  }
  play.check("a loss scale follows its rule, with a window of " +
                 std::to_string(config.loss_scale_window) + ", hysteresis of " +
                 std::to_string(config.hysteresis) + ", least " +
                 std::to_string(config.min_loss_scale),
             is_right);
}

void check_scalers(Play& play, Draws& draws) {
  for (const auto policy : {Policy::DeepSpeed, Policy::GradScaler})
    for (const int64_t window : {1, 2, 5})
      for (const int64_t hysteresis : {1, 2, 4})
        for (const auto& [power, least] :
             {std::pair{16, 1.0}, {3, 4.0}, {126, 0x1p-126}, {-125, 0x1p-126}, {1, 4.0}})
          check_scaler(play,
                       {.policy = policy,
                        .initial_scale_power = power,
                        .loss_scale_window = window,
                        .hysteresis = hysteresis,
                        .consecutive_hysteresis = draws() % 2 == 0,
                        .min_loss_scale = least},
                       draws);
}

// What never changes.
void check_fixed(Play& play) {
  for (const auto& config : {LossScaleConfig{.policy = Policy::None, .static_scale = 8},
                             LossScaleConfig{.policy = Policy::Static, .static_scale = 0x1p-126},
                             LossScaleConfig{.policy = Policy::Static, .static_scale = 0x1p127}}) {
    loss::LossScaler scaler(config);
    const bool is_none = config.policy == Policy::None;
    for (int i = 0; i < 5; ++i) scaler.stepped(&scaler, i % 2 == 0);
    play.check(
        "a scale that is none or static stays",
        scaler.scale() == (is_none ? 1 : config.static_scale) && scaler.is_needed() == !is_none);
  }
}

void check_scale_limits(Play& play) {
  const LossScaleConfig fixed{.policy = Policy::Static}, dynamic{.policy = Policy::DeepSpeed},
      torch{.policy = Policy::GradScaler};
  struct Row {
    LossScaleConfig config;
    std::function<void(LossScaleConfig&)> change;
    std::string words;  // none: it is taken
  };
  const auto power_of_two = [](const std::string& what, const std::string& got) {
    return "[initialize] expected " + what + " to be a power of two from 2^-126 to 2^127, got " +
           got + ". Only such a scale moves exponents alone.";
  };
  const auto at_least_1 = [](const std::string& what, const std::string& got) {
    return "[initialize] expected " + what + " to be at least 1, got " + got + ". It counts steps.";
  };
  const auto scale = [&](double value, const std::string& got) {
    return Row{fixed, [=](auto& config) { config.static_scale = value; },
               power_of_two("a static loss_scale", got)};
  };
  const auto power = [](const LossScaleConfig& config, int64_t value, const std::string& words) {
    return Row{config, [=](auto& one) { one.initial_scale_power = value; }, words};
  };
  const std::string powers = "[initialize] expected initial_scale_power from -126 to 127, got ";
  const auto window = [&](const LossScaleConfig& config, int64_t value, const std::string& words) {
    return Row{config, [=](auto& one) { one.loss_scale_window = value; }, words};
  };
  const std::vector<Row> rows = {
      scale(96, "96"),
      scale(0, "0"),
      scale(-2, "-2"),
      scale(0x1p128, "3.40282e+38"),
      scale(0x1p-127, "5.87747e-39"),
      scale(std::nan(""), "nan"),
      scale(std::numeric_limits<double>::infinity(), "inf"),
      power(dynamic, 128, powers + "128. The loss scale is an fp32 number."),
      power(torch, -127, powers + "-127"),
      power(dynamic, 127, ""),
      power(torch, -126, ""),
      window(dynamic, 0, at_least_1("loss_scale_window", "0")),
      window(torch, -3, at_least_1("loss_scale_window", "-3")),
      window(torch, 1, ""),
      {dynamic, [](auto& one) { one.hysteresis = 0; }, at_least_1("hysteresis", "0")},
      {torch, [](auto& one) { one.hysteresis = 0; }, ""},
      {dynamic, [](auto& one) { one.min_loss_scale = 3; }, power_of_two("min_loss_scale", "3")},
      {torch, [](auto& one) { one.min_loss_scale = 3; }, ""},
      {fixed, [](auto& one) { one.loss_scale_window = 0; }, ""}};
  for (const auto& row : rows) {
    auto config = row.config;
    row.change(config);
    if (!row.words.empty())
      play.refuse(row.words, [&] { loss::LossScaler{config}; });
    else if (config.policy == Policy::Static)
      play.check("a static scale is as given", loss::LossScaler(config).scale() == 1);
    else
      play.check("a scale begins with its power",
                 loss::LossScaler(config).scale() ==
                     std::pow(2.0, static_cast<double>(config.initial_scale_power)));
  }
}

void scales_and_factors(Play& play) {
  if (play.group()) {
    Draws draws(play.context().seed);
    check_scalers(play, draws);
    check_fixed(play);
    check_scale_limits(play);
    check_layer_drop(play);
    check_divisors(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> rules() {
  return {of_part("loss_scales_and_factors",
                  "loss scales follow their rule, and factors their formula",
                  "another scale is expected", scales_and_factors)};
}

}  // namespace equigrad::conformance::contract
