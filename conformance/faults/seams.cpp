#include "conformance/faults/seams.hpp"

#include <utility>

namespace equigrad::conformance::faults {

Seams& seams() {
  static Seams of_this_process;
  return of_this_process;
}

// What the linker calls instead of a station.
namespace wrapped {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, symbol) \
  result name parameters asm("__wrap_" symbol);                    \
  result name parameters {                                         \
    const auto& fault = seams().name;                              \
    return fault ? fault arguments : through::name arguments;      \
  }
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
}  // namespace wrapped

}  // namespace equigrad::conformance::faults
