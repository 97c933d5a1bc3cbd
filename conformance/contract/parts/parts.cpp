#include "conformance/contract/parts/parts.hpp"

#include "conformance/contract/programs/beside.hpp"

namespace equigrad::conformance::contract {

Case of_part(const std::string& name, const std::string& sentence, const std::string& fault,
             void (*program)(Play&), Plays plays) {
  return case_beside(
      {.section = "16", .name = name, .sentence = sentence, .fault = fault, .program = program},
      plays);
}

}  // namespace equigrad::conformance::contract
