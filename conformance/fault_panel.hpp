// FaultPanel: the cases of the matrix into which every fault is planted.
//
// Invariants: every value of every dimension of the matrix is in it, no two cases share a twin, and
// each takes a fraction of a second. The order is that in which a fault meets them: those that
// catch most come first.
// Units: none.   Errors: none.   Depends on: matrix.hpp.
#pragma once

#include <vector>

#include "conformance/matrix.hpp"

namespace equigrad::conformance {

const std::vector<CaseSpec>& fault_panel();

}  // namespace equigrad::conformance
