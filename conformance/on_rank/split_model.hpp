// SplitModel: one tensor rank's part of a model that is split, of the engine's parallel layers:
// what gated2 and gated4 of the zoo are on a mesh.
//
// Invariants: parameters have the names of the whole model, in its order, and are cut from its
// values; what is split is marked (engine/parallel/split_marks.hpp). The output is this rank's part
// of the logits.
// Shapes: those of a part; see cases/gated_model.hpp.
// Errors: equigrad::Error for sizes that the group does not divide.
// Depends on: cases/linear_model.hpp, engine/parallel/layers.hpp, reference/models/model.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/parallel/regions.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

// Of all ranks of the group alike.
std::shared_ptr<reference::Model> split_model(const std::string& name, uint64_t seed,
                                              const parallel::Group& group);

}  // namespace equigrad::conformance
