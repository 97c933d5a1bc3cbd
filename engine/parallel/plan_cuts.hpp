// Plan cuts: the split of a weight that a decision asks for, its packing resolved against shapes.
//
// How queries, keys and values share a packed weight follows from the row-parallel module beside
// it, whose inputs are as many as there are queries; without one, from the numbers of heads.
//
// Invariants: a cut is even, in every segment, and goes through no head whose number is known.
// Errors: equigrad::Error that names the module, the sizes, the tensor size and the remedy.
// Depends on: engine/parallel/plan_decisions.hpp, engine/parallel/split.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/parallel/plan_decisions.hpp"
#include "engine/parallel/split.hpp"

namespace equigrad::parallel {

// The dimension of a weight's outputs, or of its inputs (an embedding's are its entries).
std::int64_t output_dimension(const Candidate& candidate);
std::int64_t input_dimension(const Candidate& candidate);
std::int64_t outputs(const Candidate& candidate);
std::int64_t inputs(const Candidate& candidate);

// Of candidate `module`, whose decision is not to leave it whole.
Split cut_of(const PlanInput& input, const std::vector<Decision>& decisions, std::size_t module);

}  // namespace equigrad::parallel
