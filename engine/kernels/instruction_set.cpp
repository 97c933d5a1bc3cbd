#include "engine/kernels/instruction_set.hpp"

namespace equigrad::kernels {
namespace {

InstructionSet found() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return InstructionSet::Avx512;
  }
  if (__builtin_cpu_supports("avx2")) return InstructionSet::Avx2;
#endif
  return InstructionSet::Base;
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet set = found();
  return set;
}

}  // namespace equigrad::kernels
