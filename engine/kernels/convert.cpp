#include "engine/kernels/convert.hpp"

#include <algorithm>

namespace equigrad::kernels {
namespace {

template <class From>
[[gnu::always_inline]] inline void widen_loop(const From* __restrict from, int64_t numel,
                                              float* __restrict to) {
  for (int64_t i = 0; i < numel; ++i) to[i] = widened(from[i]);
}

template <class To>
[[gnu::always_inline]] inline void narrow_loop(const float* __restrict from, int64_t numel,
                                               To* __restrict to) {
  for (int64_t i = 0; i < numel; ++i) to[i] = narrowed<To>(from[i]);
}

template <class From>
void widen_from(const void* from, int64_t numel, float* to, InstructionSet set) {
  const auto* typed = static_cast<const From*>(from);
  run_on(
      set, [=]() __attribute__((always_inline)) { widen_loop(typed, numel, to); });
}

template <class To>
void narrow_to(const float* from, int64_t numel, void* to, InstructionSet set) {
  auto* typed = static_cast<To*>(to);
  run_on(
      set, [=]() __attribute__((always_inline)) { narrow_loop(from, numel, typed); });
}

}  // namespace

void widen(const void* from, Element from_type, int64_t numel, float* to, InstructionSet set) {
  switch (from_type) {
    case Element::Fp32:
      std::copy_n(static_cast<const float*>(from), numel, to);
      break;
    case Element::Bf16:
      widen_from<Bf16>(from, numel, to, set);
      break;
    case Element::Fp16:
      widen_from<Fp16>(from, numel, to, set);
      break;
  }
}

void narrow(const float* from, int64_t numel, void* to, Element to_type, InstructionSet set) {
  switch (to_type) {
    case Element::Fp32:
      std::copy_n(from, numel, static_cast<float*>(to));
      break;
    case Element::Bf16:
      narrow_to<Bf16>(from, numel, to, set);
      break;
    case Element::Fp16:
      narrow_to<Fp16>(from, numel, to, set);
      break;
  }
}

}  // namespace equigrad::kernels
