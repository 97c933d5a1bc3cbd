#include "conformance/faults/seams.hpp"

#include <utility>

#include "equigrad_seam_symbols.hpp"

namespace equigrad::conformance::faults {

Seams& seams() {
  static Seams of_this_process;
  return of_this_process;
}

// What the linker calls a station that it leads through here.
namespace real {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, station) \
  result name parameters asm("__real_" EQUIGRAD_SYMBOL_##name);
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
}  // namespace real

namespace through {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, station) \
  result name parameters { return real::name arguments; }
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
}  // namespace through

// What the linker calls instead of a station.
namespace wrapped {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, station) \
  result name parameters asm("__wrap_" EQUIGRAD_SYMBOL_##name);     \
  result name parameters {                                          \
    const auto& fault = seams().name;                               \
    return fault ? fault arguments : real::name arguments;          \
  }
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
}  // namespace wrapped

const void* wrapper_of(const std::string& seam) {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, station) \
  if (seam == #name)                                                \
    return reinterpret_cast<const void*>(static_cast<result(*) parameters>(&wrapped::name));
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
  return nullptr;
}

}  // namespace equigrad::conformance::faults
