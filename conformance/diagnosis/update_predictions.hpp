// UpdatePredictions: what an update would have given if the rule, its settings or its gradient were
// wrong in a way that is known: no or twice the decay, a bias correction of another step, a
// momentum that was not carried on, the gradient of the step before, ...
//
// Invariants: a prediction is given only where it agrees with the master and with every state that
// came of the update: for half of the elements that are wrong anywhere it leaves no more than its
// roundings do, in ulp of the tensor's type and of the largest of what was there before, what came
// of it and what is predicted. None of what is copied; kOfSettings of what other settings give, a
// factor and its product; kOfGradient of what another gradient gives: its factor and the product on
// both sides, 4, twice as many in a square, and those of a quotient of the two.
// Shapes: as check_update.   Units: fp32, rounded to each tensor's own type.
// Errors: those of ATen.   Depends on: update_bound.hpp, plain_update.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/oracle/update_bound.hpp"

namespace equigrad::conformance::oracle {

struct UpdateEvidence {
  UpdateSpec spec;
  Weights before, after, want;  // want: what is right instead of after
  at::Tensor gradient;
  at::Tensor previous_gradient;          // undefined: none
  std::vector<UpdateSpec> other_groups;  // whose rate and decay may have been used
  int64_t world = 1;
  int64_t accumulation_steps = 1;
  double loss_scale = 1;
  double clip_factor = 1;
};

inline constexpr double kOfSettings = 2, kOfGradient = 4 + 2 * 4 + 4;

struct WeightsPrediction {
  std::string cause;
  Weights weights;
  double roundings = 0;
};

std::vector<WeightsPrediction> update_predictions(const UpdateEvidence& evidence);

}  // namespace equigrad::conformance::oracle
