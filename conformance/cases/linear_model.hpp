// LinearModel: the smallest models there are, for failures that are shrunk: linear1 to linear7.
//
//   linear3: parameters dot1 [1], dot2 [2], dot3 [3];  y[b, i] = input[b, :i] . dot_i;
//          loss = mean((y - target)^2) / 2
//
// They are no part of the matrix, and are trained on the irregular model's batches.
//
// Invariants: gated, gated2 and gated4 are those of gated_model.hpp, ulysses, ulysses2 and ulysses4
// those of sequence_model.hpp; any other name is one of reference/models/model.hpp and data.hpp,
// and gives what they give.
// Shapes: input [3, 7], target [3]; output [3, n].
// Errors: those of the reference for an unknown name.
// Depends on: gated_model.hpp, sequence_model.hpp, reference/models/model.hpp,
// reference/models/data.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "reference/models/model.hpp"

namespace equigrad::conformance {

std::shared_ptr<reference::Model> make_case_model(const std::string& name, uint64_t seed);
reference::Batch make_case_batch(const reference::Data& data, const std::string& model,
                                 const reference::Draw& draw);

}  // namespace equigrad::conformance
