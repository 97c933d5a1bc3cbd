// SequencePart: one rank of a sequence group of a model with parallel::DistributedAttention: what
// ulysses2 and ulysses4 of the zoo are on a mesh.
//
// Invariants: parameters have the names, the order and the values of the whole model. It is given
// whole batches and cuts them (engine/parallel/sequence.hpp); the output is this rank's part of the
// logits, the loss that of the whole sequence.
// Shapes: batches as in cases/sequence_model.hpp; the output [B, C / S, 64].
// Errors: equigrad::Error for a number of ranks that does not divide.
// Depends on: cases/linear_model.hpp, on_rank/local_attention.hpp,
// engine/parallel/distributed_attention.hpp, engine/parallel/sequence.hpp,
// reference/models/model.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/parallel/regions.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

// Of all ranks of the group alike.
std::shared_ptr<reference::Model> sequence_part_model(const std::string& name, uint64_t seed,
                                                      const parallel::Group& group);

}  // namespace equigrad::conformance
