// Set lr: the values that updates use, changed between two of them.
//
// Invariants: on all ranks or on none; a rank that refuses its values meets the others all the
// same.
// Units: values by parameter group.
// Errors: equigrad::Error on every rank for values that differ, and for those refused on one.
// Depends on: engine/core/training_engine.hpp, config.
#pragma once

#include <vector>

#include "engine/config/config.hpp"

namespace equigrad::core {

struct Parts;

void set_lr(Parts& parts, const std::vector<double>& lr_by_group);
// Of the configured optimizer.
void set_hyper_parameters(Parts& parts, const std::vector<OptimizerConfig>& by_group);

}  // namespace equigrad::core
