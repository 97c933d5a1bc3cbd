// Simpler: the cases that are a step simpler than a generated one, the largest steps first, for
// whoever shrinks a failure.
//
// Invariants: none of them is the case itself; following them ends, since each has less of
// something: ranks of an axis, steps, micro-batches, tensors, elements, sizes of the core, events,
// keys, or values that are not the usual ones. Some are no legal case: the caller finds out, and
// leaves them.
// Units: none.   Errors: none.   Depends on: workload.hpp. No torch.
#pragma once

#include <vector>

#include "conformance/generator/workload.hpp"

namespace equigrad::conformance {

std::vector<GeneratedCase> simpler_than(const GeneratedCase& one);

}  // namespace equigrad::conformance
