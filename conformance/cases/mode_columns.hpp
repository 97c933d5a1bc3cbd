// ModeColumns: what a precision means, once to the reference and once to the engine: two columns of
// the table in precision_modes.cpp.
//
// Invariants: the columns are written separately on purpose: neither is made from the other, so a
// key that the engine misreads is not misread by the twin too.
// Units: accumulation counts micro-batches.   Errors: none.
// Depends on: precision_modes.hpp, reference/precision.hpp, nlohmann-json.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "conformance/cases/precision_modes.hpp"
#include "reference/precision.hpp"

namespace equigrad::conformance {

struct ReferenceMode {
  at::ScalarType param = at::kFloat, master = at::kFloat, state = at::kFloat;
  std::optional<at::ScalarType> communication = {}, autocast = {};
  reference::LossScaleSpec loss_scale = {};
  reference::Averaging averaging = reference::Averaging::AfterSum;
  double predivide_factor = 1.0;
  bool exact_sums = false;
};
const ReferenceMode& reference_mode(Precision precision, int accumulation);

// The keys of a DeepSpeed configuration, to be merged into it.
nlohmann::json engine_keys(Precision precision, int accumulation);

}  // namespace equigrad::conformance
