// 17. What is refused, and in which words.
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {

std::vector<Case> refusals() { return {}; }

}  // namespace equigrad::conformance::contract
