// 16. Its parts: parameters, shards, and what moves them.
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {

std::vector<Case> holdings() { return {}; }

}  // namespace equigrad::conformance::contract
