// CoveringSelection: the cases that a run begins with, that `equigrad run --covering` consists of,
// and into which every fault is planted: every pair of values of any two dimensions of the matrix
// (cases/covering.hpp), and what catches the faults that no case of those does.
//
// Invariants: its cases are cases of the default selection, in its order; the kill matrix says what
// they catch. Ends within a minute on two cores.
// Units: none.   Errors: none.   Depends on: covering.hpp, contract/contract_case.hpp.
#pragma once

#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/contract/contract_case.hpp"

namespace equigrad::conformance {

struct CoveringSelection {
  std::vector<CaseSpec> cases;        // of the matrix
  std::vector<contract::Spec> specs;  // of the contract
  bool has(const CaseSpec& spec) const;
  bool has(const contract::Spec& spec) const;
};
const CoveringSelection& covering_selection();

// A case that is there for what it catches, beside the pairs.
struct BeyondPairs {
  const char* id;
  const char* why;
};
const std::vector<BeyondPairs>& beyond_pairs();

}  // namespace equigrad::conformance
