// FaultPanel: the cases of the matrix into which every fault is planted.
//
// Invariants: every value of every dimension of the matrix is in it, no two cases share a twin, and
// each takes a fraction of a second. The order is that in which a fault meets them: those that
// catch most come first.
// Units: none.   Errors: none.   Depends on: matrix.hpp, contract/contract_case.hpp.
#pragma once

#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/contract/contract_case.hpp"

namespace equigrad::conformance {

const std::vector<CaseSpec>& fault_panel();

// Every case of the contract, for what the panel did not catch.
struct ContractPanel {
  std::vector<contract::Spec> cases;
  std::size_t telling = 0;  // so many of them, the first, see what no case of the matrix can
};
ContractPanel contract_panel();

}  // namespace equigrad::conformance
