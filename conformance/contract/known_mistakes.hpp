// KnownMistakes: what DeepSpeed is seen to do, that a case of the contract answers, in words.
//
// Invariants: ids are "trap 1" to "trap 20" and "misbehaviour 1" to "misbehaviour 7"; each has a
// case that answers it. A name begins with the id (trap-01-, misbehaviour-1-) and says what must
// hold, or which pattern it is about; cases can be selected by it (aliases).
// Units: none.   Errors: equigrad::Error for an id that there is not.
// Depends on: players/contract_spec.hpp; engine/error.hpp in the source.
#pragma once

#include <string>
#include <vector>

#include "conformance/contract/players/contract_spec.hpp"

namespace equigrad::conformance::contract {

struct KnownMistake {
  std::string id;
  std::string name;   // trap-15-zero-grad-cancels-the-window
  std::string words;  // what is seen
};
const std::vector<KnownMistake>& known_mistakes();
const KnownMistake& known_mistake(const std::string& id);

// A case's other names, one for each known mistake that it answers:
// Contract.trap-01-a-second-backward-accumulates.two_losses_on_one_forward.zero2.bf16.w3
//   .accumulation1
std::vector<std::string> aliases(const Spec& spec);

// The table of README.md: a row for each mistake with the cases that answer it.
std::string known_mistakes_table();

}  // namespace equigrad::conformance::contract
