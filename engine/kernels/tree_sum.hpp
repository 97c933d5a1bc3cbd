// tree_sum: adds the rows of a matrix in the fixed order that every reduction of the engine
// promises.
//
//   rows 0 1 2 3 4  ->  (0+1) (2+3) 4  ->  ((0+1)+(2+3)) 4  ->  (((0+1)+(2+3))+4)
//
// Invariants: neighbours are added level by level in fp32, an odd last one is carried up unchanged;
// element i of the result depends on column i only; the result is rounded once to the output type.
// One pass over memory, no temporaries of size n.
// Shapes: rows [n] each, which may lie apart (CUDA: [rows, n] row after row), output [n]; it may be
// one of the rows if it has the type of the input.
// Units: n counts elements.
// Errors: none; the caller checks sizes. The CUDA form is launched on `stream` and returns at once.
// Depends on: kernels/element.hpp, the C++ standard library; the source on kernels/parallel.hpp.
#pragma once

#include <cstdint>

#include "engine/kernels/element.hpp"

namespace equigrad::kernels {

void tree_sum(const void* const* inputs, Element input_type, int rows, int64_t n, void* output,
              Element output_type);

// `stream` is a cudaStream_t.
void tree_sum_cuda(const void* input, Element input_type, int rows, int64_t n, void* output,
                   Element output_type, void* stream);

}  // namespace equigrad::kernels
