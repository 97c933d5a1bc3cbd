#include "conformance/faults/survivors.hpp"

namespace equigrad::conformance::faults {

const std::vector<Survivor>& survivors() {
  static const std::vector<Survivor> all = {};
  return all;
}

}  // namespace equigrad::conformance::faults
