#include "conformance/faults/fault.hpp"

namespace equigrad::conformance::faults {
namespace {

struct Reason {
  const char* why;
  std::vector<const char*> bugs;
};

const std::vector<Reason> kReasons = {
    {"pipeline parallelism: the engine has none", {"DS-11", "MG-01"}},
    {"expert parallelism: the engine has none",
     {"DS-25", "DS-26", "DS-27", "DS-46", "DS-47", "DS-67", "DS-85", "DS-86", "MG-04", "MG-05"}},
    {"sparse gradients: the key is refused", {"DS-32", "DS-33"}},
    {"optimizers that need a whole matrix: the engine has none", {"DS-52"}},
    {"needs a tensor of more than 2^31 elements", {"DS-78"}},
    {"offload_states and reload_states: the engine has none", {"DS-50"}},
    {"the loss is the user's: the engine does not normalise it", {"HF-01", "TE-01"}},
};

}  // namespace

const std::vector<OpenBug>& open_bugs() {
  static const std::vector<OpenBug> bugs = [] {
    std::vector<OpenBug> all;
    for (const auto& reason : kReasons)
      for (const char* id : reason.bugs) all.push_back({id, reason.why});
    return all;
  }();
  return bugs;
}

}  // namespace equigrad::conformance::faults
