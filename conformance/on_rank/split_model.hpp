// SplitModel: what one rank of a mesh has of the gated network (cases/gated_model.hpp), of the
// engine's parallel layers: what gated2, gated4, gated2x2 and dropout2 of the zoo are, and what
// generated cases draw.
//
// Invariants: parameters have the names of the whole model, in its order, and are cut from its
// values; what is split is marked (engine/parallel/split_marks.hpp). It is given whole batches, of
// which a rank of a sequence takes its part. The output is this rank's part of the logits.
// Shapes: those of a part; a null group is one rank.
// Errors: equigrad::Error for sizes that a group does not divide.
// Depends on: cases/gated_model.hpp, cases/linear_model.hpp, on_rank/local_attention.hpp,
// engine/parallel/layers.hpp, engine/parallel/sequence.hpp, reference/models/model.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "conformance/cases/gated_sizes.hpp"
#include "engine/parallel/regions.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

// A model of the matrix (gated_model.hpp), of all ranks of both groups alike.
std::shared_ptr<reference::Model> split_model(const std::string& name, uint64_t seed,
                                              const parallel::Group& tensor,
                                              const parallel::Group& sequence);
// Of all ranks of both groups alike, whose sizes are those of `sizes`.
std::shared_ptr<reference::Model> split_model(const GatedSizes& sizes, uint64_t seed,
                                              const parallel::Group& tensor,
                                              const parallel::Group& sequence);

}  // namespace equigrad::conformance
