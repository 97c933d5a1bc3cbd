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
    : config_(config), scale_(initial_scale(config)), hysteresis_left_(config.hysteresis) {}

void LossScaler::hold(const void* engine) { holders_.insert(engine); }

void LossScaler::stepped(const void* engine, bool overflow) {
  holders_.erase(engine);
  stepped_ = true;
  overflow_ = overflow_ || overflow;
  if (is_due()) change();
}

void LossScaler::released(const void* engine) noexcept {
  holders_.erase(engine);
  if (is_due() && !(overflow_ && is_at_floor())) change();
}

bool LossScaler::is_at_floor() const {
  return config_.policy == Policy::DeepSpeed && hysteresis_left_ == 1 &&
         scale_ == config_.min_loss_scale;
}

void LossScaler::change() {
  stepped_ = false;
  const bool overflow = std::exchange(overflow_, false);
  if (config_.policy == Policy::DeepSpeed) change_as_deepspeed(overflow);
  if (config_.policy == Policy::GradScaler) change_as_grad_scaler(overflow);
}

void LossScaler::change_as_deepspeed(bool overflow) {
  const auto step = steps_++;
  if (overflow) {
    last_overflow_ = step;
    if (is_at_floor()) {
      throw Error("step", "expected finite gradients at the smallest loss scale, " +
                              text_of(scale_) +
                              " (min_loss_scale), got an overflow. The model "
                              "diverges: lower the learning rate, clip gradients, or look for the "
                              "first non-finite activation; a smaller min_loss_scale lets the "
                              "scale go on falling.");
    }
    if (hysteresis_left_ > 1) {
      --hysteresis_left_;
    } else {
      scale_ = std::max(scale_ / 2, config_.min_loss_scale);
    }
    return;
  }
  if (config_.consecutive_hysteresis) hysteresis_left_ = config_.hysteresis;
  const auto good_steps = step - last_overflow_ - 1;  // before this one
  if (good_steps == 0 || good_steps % config_.loss_scale_window != 0) return;
  hysteresis_left_ = config_.hysteresis;
  grow();
}

void LossScaler::change_as_grad_scaler(bool overflow) {
  if (overflow) {
    good_steps_ = 0;
    scale_ = std::max(scale_ / 2, std::ldexp(1.0, kSmallestPower));
    return;
  }
  if (++good_steps_ < config_.loss_scale_window) return;
  good_steps_ = 0;
  grow();
}

void LossScaler::grow() { scale_ = std::min(scale_ * 2, std::ldexp(1.0, kLargestPower)); }

}  // namespace equigrad::loss
