#include "engine/loss/loss_scaler.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <utility>

namespace equigrad::loss {
namespace {

using Policy = LossScaleConfig::Policy;

constexpr int kSmallestPower = -126, kLargestPower = 127;

std::string text_of(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

void check_power_of_two(const std::string& what, double value) {
  int exponent = 0;
  const bool is_power = std::isfinite(value) && std::frexp(value, &exponent) == 0.5;
  if (is_power && exponent - 1 >= kSmallestPower && exponent - 1 <= kLargestPower) return;
  throw Error("initialize", "expected " + what +
                                " to be a power of two from 2^-126 to 2^127, got " +
                                text_of(value) + ". Only such a scale moves exponents alone.");
}

void check_at_least_1(const std::string& what, int64_t value) {
  if (value >= 1) return;
  throw Error("initialize", "expected " + what + " to be at least 1, got " + std::to_string(value) +
                                ". It counts steps.");
}

double initial_scale(const LossScaleConfig& config) {
  if (config.policy == Policy::None) return 1.0;
  if (config.policy == Policy::Static) {
    check_power_of_two("a static loss_scale", config.static_scale);
    return config.static_scale;
  }
  const auto power = config.initial_scale_power;
  if (power < kSmallestPower || power > kLargestPower) {
    throw Error("initialize", "expected initial_scale_power from -126 to 127, got " +
                                  std::to_string(power) + ". The loss scale is an fp32 number.");
  }
  check_at_least_1("loss_scale_window", config.loss_scale_window);
  if (config.policy == Policy::DeepSpeed) {
    check_at_least_1("hysteresis", config.hysteresis);
    check_power_of_two("min_loss_scale", config.min_loss_scale);
  }
  return std::ldexp(1.0, static_cast<int>(power));
}

}  // namespace

LossScaler::LossScaler(const LossScaleConfig& config)
    : config_(config),
      history_{.scale = initial_scale(config), .hysteresis_left = config.hysteresis} {}

void LossScaler::hold(const void* engine) { holders_.insert(engine); }

void LossScaler::stepped(const void* engine, bool overflow) {
  holders_.erase(engine);
  history_.stepped = true;
  history_.overflow = history_.overflow || overflow;
  if (is_due()) change();
}

void LossScaler::released(const void* engine) noexcept {
  holders_.erase(engine);
  if (is_due() && !(history_.overflow && is_at_floor())) change();
}

void LossScaler::restore(const History& history) {
  EQUIGRAD_CHECK(!is_held(), "loss_scale.restore", "no window holds gradients of the old scale");
  if (config_.policy == Policy::None) return;
  check_power_of_two("the loss scale that was saved", history.scale);
  if (history.steps < 0 || history.last_overflow < -1 || history.last_overflow > history.steps ||
      history.hysteresis_left < 1 || history.good_steps < 0) {
    throw Error("load_checkpoint",
                "expected a history of the loss scale whose counts are those of steps, got " +
                    std::to_string(history.steps) + " steps, the last overflow at " +
                    std::to_string(history.last_overflow) + ". Load another tag.");
  }
  history_ = history;
}

bool LossScaler::is_at_floor() const {
  return config_.policy == Policy::DeepSpeed && history_.hysteresis_left == 1 &&
         history_.scale == config_.min_loss_scale;
}

void LossScaler::change() {
  history_.stepped = false;
  const bool overflow = std::exchange(history_.overflow, false);
  if (config_.policy == Policy::DeepSpeed) change_as_deepspeed(overflow);
  if (config_.policy == Policy::GradScaler) change_as_grad_scaler(overflow);
}

void LossScaler::change_as_deepspeed(bool overflow) {
  const auto step = history_.steps++;
  if (overflow) {
    history_.last_overflow = step;
    if (is_at_floor()) {
      throw Error("step", "expected finite gradients at the smallest loss scale, " +
                              text_of(history_.scale) +
                              " (min_loss_scale), got an overflow. The model "
                              "diverges: lower the learning rate, clip gradients, or look for the "
                              "first non-finite activation; a smaller min_loss_scale lets the "
                              "scale go on falling.");
    }
    if (history_.hysteresis_left > 1) {
      --history_.hysteresis_left;
    } else {
      history_.scale = std::max(history_.scale / 2, config_.min_loss_scale);
    }
    return;
  }
  if (config_.consecutive_hysteresis) history_.hysteresis_left = config_.hysteresis;
  const auto good_steps = step - history_.last_overflow - 1;  // before this one
  if (good_steps == 0 || good_steps % config_.loss_scale_window != 0) return;
  history_.hysteresis_left = config_.hysteresis;
  grow();
}

void LossScaler::change_as_grad_scaler(bool overflow) {
  if (overflow) {
    history_.good_steps = 0;
    history_.scale = std::max(history_.scale / 2, std::ldexp(1.0, kSmallestPower));
    return;
  }
  if (++history_.good_steps < config_.loss_scale_window) return;
  history_.good_steps = 0;
  grow();
}

void LossScaler::grow() {
  history_.scale = std::min(history_.scale * 2, std::ldexp(1.0, kLargestPower));
}

}  // namespace equigrad::loss
