// Progressive layer drop: the probability theta(t) with which the model keeps its layers.
//
// theta(t) = (1 - theta_bar) exp(-gamma t) + theta_bar falls from 1 to theta_bar = the configured
// theta. The engine updates it at every boundary with the number of boundaries before it, so that
// the passes up to and including those after the first boundary see 1; the model reads the state
// and drops its own layers.
//
// Invariants: theta is in [theta_bar, 1], and falls monotonically with the step.
// Units: a global step is a boundary; theta is a probability.
// Errors: equigrad::Error for a theta_bar outside [0, 1], a gamma below 0 or not finite, a
// negative step, and a theta outside [0, 1].
// Depends on: engine/config/config.hpp.
// Paper: Zhang and He, Accelerating Training of Transformer-Based Language Models with Progressive
// Layer Dropping (arXiv 2010.13369).
#pragma once

#include <cstdint>

#include "engine/config/config.hpp"

namespace equigrad::schedule {

// The keyword arguments that DeepSpeed hands to the model's forward.
struct LayerDropState {
  bool progressive_layer_drop = true;
  double pld_theta = 1.0;
  bool operator==(const LayerDropState&) const = default;
};

class ProgressiveLayerDrop {
 public:
  explicit ProgressiveLayerDrop(const ProgressiveLayerDropConfig& config);

  void update(std::int64_t global_step);
  double theta() const { return theta_; }
  void restore(double theta);  // of an earlier run
  LayerDropState state() const { return {true, theta_}; }

 private:
  double theta_bar_;
  double gamma_;
  double theta_ = 1.0;
};

}  // namespace equigrad::schedule
