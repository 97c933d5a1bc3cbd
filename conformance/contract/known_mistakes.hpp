// KnownMistakes: what DeepSpeed is seen to do, that a case of the contract answers, in words.
//
// Invariants: ids are "trap 1" to "trap 20" and "misbehaviour 1" to "misbehaviour 7"; each has a
// case that answers it, but for those that are about a loss scale, which fp32 and bf16 do not have.
// Units: none.   Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <string>
#include <vector>

namespace equigrad::conformance::contract {

struct KnownMistake {
  std::string id;
  std::string words;
  bool of_loss_scale = false;
};
const std::vector<KnownMistake>& known_mistakes();

}  // namespace equigrad::conformance::contract
