// Instruction set: one plain loop, compiled for each vector unit that a processor may have.
//
//   run_on(set, [=]() __attribute__((always_inline)) { for (..) to[i] = a[i] * b[i]; });
//
// Invariants: the bits are the same on every set. A lane adds, multiplies, divides and takes roots
// as IEEE 754 says, each rounded once; the build contracts nothing (-ffp-contract=off) and allows
// no approximation. The loop, and what it calls, must be inlined: code is compiled for the function
// that it ends up in.
// Errors: none; a set that the processor lacks must not be run.
// Depends on: the C++ standard library only; compilers that know GNU attributes.
#pragma once

namespace equigrad::kernels {

enum class InstructionSet { Base, Avx2, Avx512 };

// The best that this processor, and the operating system, have.
InstructionSet instruction_set();

template <class Loop>
void run_on_base(Loop loop) {
  loop();
}

#if defined(__x86_64__)
template <class Loop>
[[gnu::target("avx2")]] void run_on_avx2(Loop loop) {
  loop();
}

template <class Loop>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void run_on_avx512(Loop loop) {
  loop();
}
#endif

template <class Loop>
void run_on(InstructionSet set, Loop loop) {
#if defined(__x86_64__)
  if (set == InstructionSet::Avx512) return run_on_avx512(loop);
  if (set == InstructionSet::Avx2) return run_on_avx2(loop);
#endif
  run_on_base(loop);
}

}  // namespace equigrad::kernels
