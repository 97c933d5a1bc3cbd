#include "conformance/faults/survivors.hpp"

namespace equigrad::conformance::faults {

const std::vector<Survivor>& survivors() {
  static const std::vector<Survivor> all = {
      {"mutant.copy_out.made_twice",
       "copy_out reads the gathered columns and writes the parameter; what it writes it never "
       "reads, so the second call writes the same bits to the same places."},
      {"mutant.refresh.made_twice",
       "refresh rounds every master into its shard; masters are not written, so the second call "
       "rounds the same numbers to the same bits."},
      {"mutant.hold.made_twice",
       "hold puts the engine's address into a set of those that hold gradients of the scale; the "
       "set already has it, and counts nothing."},
  };
  return all;
}

}  // namespace equigrad::conformance::faults
