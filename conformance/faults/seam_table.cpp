// The stations of seams.def as addresses. This file becomes assembly, never an object: behind the
// label of a row stands the symbol of its station, by whatever rules the compiler makes it
// (read_symbols.cmake).
#include "conformance/faults/seams.hpp"
#include "conformance/faults/station.hpp"

namespace equigrad::conformance::faults {

extern "C" {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, station) \
  constinit auto equigrad_seam_##name = Station<result parameters>::of(&station);
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
}

}  // namespace equigrad::conformance::faults
