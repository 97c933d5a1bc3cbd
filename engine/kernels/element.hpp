// Element: the number formats that the kernels read and write. Sums and updates are in fp32.
//
// Units: element_bytes is the size of one number.
// Errors: none.
// Depends on: the C++ standard library only (C++17: nvcc compiles it too).
#pragma once

#include <cstdint>

namespace equigrad::kernels {

enum class Element { Fp32, Bf16, Fp16 };

constexpr int64_t element_bytes(Element type) { return type == Element::Fp32 ? 4 : 2; }

}  // namespace equigrad::kernels
