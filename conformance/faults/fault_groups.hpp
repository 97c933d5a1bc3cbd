// Fault groups: the catalogue, by seam; and what its faults are made of.
//
// Invariants, shapes, units, errors: those of fault.hpp.
// Depends on: fault.hpp, seams.hpp.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/faults/fault.hpp"
#include "conformance/faults/seams.hpp"

namespace equigrad::conformance::faults {

std::vector<Fault> communicator_faults();

}  // namespace equigrad::conformance::faults
