// FaultPanel: the cases into which every fault is planted: the covering selection's, and the
// contract's for what is left.
//
// Invariants: the order is that in which a fault meets them: those that catch most, and show best
// what it did, come first.
// Units: none.   Errors: none.
// Depends on: covering_selection.hpp, matrix.hpp, contract/contract_case.hpp.
#pragma once

#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/contract/contract_case.hpp"

namespace equigrad::conformance {

// Those of the matrix, all of the covering selection.
const std::vector<CaseSpec>& fault_panel();

// Every case of the contract, for what the panel did not catch.
struct ContractPanel {
  std::vector<contract::Spec> cases;
  std::size_t covering = 0;  // so many of them, the first, are the covering selection's
};
ContractPanel contract_panel();

}  // namespace equigrad::conformance
