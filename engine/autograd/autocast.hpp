// Autocast: operators choose their types as torch.autocast does, for as long as a guard lives.
//
// Invariants: only the calling thread is changed, and it is as before when the guard dies, whatever
// was set inside; casts of weights are kept from one operator to the next until the outermost guard
// dies, so a weight that is used twice is cast once, and its gradients are added in the lower
// precision, as torch.autocast does. None is taken from a guard of the caller's for another type,
// nor left to it.
// Errors: none.
// Depends on: config/precision.hpp; ATen's autocast mode in the source.
#pragma once

#include <c10/core/DeviceType.h>

#include <memory>

#include "engine/config/precision.hpp"

namespace equigrad {

// Null where it is not enabled.
std::shared_ptr<void> make_autocast_guard(const AutocastConfig& config, c10::DeviceType device);

}  // namespace equigrad
