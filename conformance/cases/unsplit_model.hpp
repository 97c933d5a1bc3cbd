// UnsplitModel: what ranks that share a model, or a sequence, compute together, as each data rank
// would alone: gated for gated2, gated4 and gated2x2, ulysses for ulysses2 and ulysses4; dropout2
// has none, whose parts drop out other units.
//
// Invariants: the values and the batches of the shared model; no loss overflows.
// Shapes: those of the model.   Units: a Pass's rank is a data rank.
// Errors: those of the model.
// Depends on: case_model.hpp, matrix.hpp; linear_model.hpp in the source.
#pragma once

#include <cstdint>
#include <string>

#include "conformance/cases/case_model.hpp"
#include "conformance/cases/matrix.hpp"

namespace equigrad::conformance {

// Its name; empty where ranks share nothing.
std::string unsplit_name(const CaseSpec& spec);
MakeCaseModel unsplit_model(const CaseSpec& spec, uint64_t seed, const reference::Data& data);

}  // namespace equigrad::conformance
