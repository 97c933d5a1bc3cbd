// Device: where a rank process has the models of its cases and their batches. Passes run there;
// what a twin adds, averages, clips and updates is on the CPU, whatever the device, so that an
// engine on a GPU is compared with plain loops.
//
// Invariants: the CPU until another one is assigned, before the first model is made.
// Shapes: as they are.   Errors: c10::Error of torch where the device has no room.
// Depends on: reference/models, c10.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "reference/models/data.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

// Why cases that add exactly are left out on CUDA, where the engine refuses it.
inline constexpr const char* kNoExactSumsOnCuda = "sums are pinned on CUDA, not exact";

c10::Device& device();
std::shared_ptr<reference::Model> on_device(std::shared_ptr<reference::Model> model);
reference::Batch on_device(const reference::Batch& batch);

}  // namespace equigrad::conformance
