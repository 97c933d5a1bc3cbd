// ContractCase: every line of the contract as named cases, each at every stage.
//
// Invariants: names are unique; every case that its stage may change is in the default selection at
// all stages and all its precisions with two ranks (or its fewest), and once with each other number
// of ranks; the others as their Plays say.
// Units: those of players/contract_spec.hpp.
// Errors: equigrad::Error for an id that no case has.
// Depends on: players/contract_spec.hpp; programs, engine/error.hpp in the source. No torch.
#pragma once

#include <string>
#include <vector>

#include "conformance/contract/players/contract_spec.hpp"

namespace equigrad::conformance::contract {

struct Section {
  std::string number;  // "2"
  std::string sentence;
};
const std::vector<Section>& sections();

const std::vector<Case>& cases();
std::vector<Spec> default_specs();
std::vector<Spec> full_specs();
Spec parse_contract_id(const std::string& id);

}  // namespace equigrad::conformance::contract
