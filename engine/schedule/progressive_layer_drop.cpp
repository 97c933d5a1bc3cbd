#include "engine/schedule/progressive_layer_drop.hpp"

#include <cmath>
#include <string>

#include "engine/error.hpp"

namespace equigrad::schedule {

ProgressiveLayerDrop::ProgressiveLayerDrop(const ProgressiveLayerDropConfig& config)
    : theta_bar_(config.theta), gamma_(config.gamma) {
  if (!(theta_bar_ >= 0.0 && theta_bar_ <= 1.0))
    throw Error("progressive_layer_drop.theta", "expected a probability from 0 to 1, got " +
                                                    std::to_string(theta_bar_) + ". Write 0.5.");
  if (!(gamma_ >= 0.0 && std::isfinite(gamma_)))
    throw Error("progressive_layer_drop.gamma", "expected a finite number of at least 0, got " +
                                                    std::to_string(gamma_) + ". Write 0.001.");
}

void ProgressiveLayerDrop::update(std::int64_t global_step) {
  if (global_step < 0)
    throw Error("progressive_layer_drop.update", "expected a global step of at least 0, got " +
                                                     std::to_string(global_step) +
                                                     ". Give the number of boundaries so far.");
  // lerp gives exactly 1 at step 0 and never leaves [theta_bar, 1].
  theta_ = std::lerp(theta_bar_, 1.0, std::exp(-gamma_ * static_cast<double>(global_step)));
}

void ProgressiveLayerDrop::restore(double theta) {
  if (!(theta >= 0.0 && theta <= 1.0))
    throw Error("progressive_layer_drop.restore",
                "expected a probability from 0 to 1, got " + std::to_string(theta) +
                    ". Take it from a run with the same section.");
  theta_ = theta;
}

}  // namespace equigrad::schedule
