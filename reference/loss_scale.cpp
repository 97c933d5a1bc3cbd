#include "reference/loss_scale.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace equigrad::reference {

using Policy = LossScaleSpec::Policy;

LossScale::LossScale(const LossScaleSpec& spec)
    : spec_(spec),
      scale_(spec.policy == Policy::None ? 1.0 : spec.initial),
      hysteresis_(spec.hysteresis) {
  const auto expect = [](bool right, const char* what, double got) {
    TORCH_CHECK(right, "[loss_scale] expected ", what, ", got ", got, ".");
  };
  const auto is_power = [](double value) {
    return value > 0 && std::isfinite(value) && std::scalbn(1.0, std::ilogb(value)) == value;
  };
  expect(is_power(scale_), "a power of two", scale_);
  if (spec.policy == Policy::None || spec.policy == Policy::Static) return;
  expect(spec.window > 0, "a window of at least one step", static_cast<double>(spec.window));
  if (spec.policy == Policy::GradScaler) return;
  expect(spec.hysteresis > 0, "a hysteresis above 0", static_cast<double>(spec.hysteresis));
  expect(is_power(spec.minimum) && spec.minimum <= scale_,
         "a power of two, at most the scale, as its minimum", spec.minimum);
}

void LossScale::update(bool overflow) {
  if (spec_.policy == Policy::DeepSpeed) update_deepspeed(overflow);
  if (spec_.policy != Policy::GradScaler) return;
  good_steps_ = overflow ? 0 : good_steps_ + 1;
  const bool grows = good_steps_ == spec_.window;
  if (grows) good_steps_ = 0;
  if (overflow || grows) scale_ *= overflow ? 0.5 : 2;
}

void LossScale::update_deepspeed(bool overflow) {
  const int64_t good = iteration_ - last_overflow_ - 1;  // good steps before this one
  const bool grows = !overflow && good > 0 && good % spec_.window == 0;
  if (overflow && (spec_.hysteresis == 1 || hysteresis_ == 1)) {
    TORCH_CHECK(scale_ != spec_.minimum, "[loss_scale] expected finite gradients at the minimum ",
                spec_.minimum, ", got an overflow. The scale cannot be halved any more.");
    scale_ = std::max(scale_ / 2, spec_.minimum);
  } else if (overflow) {
    --hysteresis_;
  } else if (spec_.consecutive_hysteresis || grows) {
    hysteresis_ = spec_.hysteresis;
  }
  if (grows) scale_ *= 2;
  if (overflow) last_overflow_ = iteration_;
  ++iteration_;
}

}  // namespace equigrad::reference
