// FirstDifference: what a rank compared when engine and twin differed for the first time, and its
// file in a failure's folder. A gradient takes the place of its norm, which is compared before it.
//
//   rank<N>.first.safetensors   got, want; metadata: where, begin
//
// Invariants: `where` is that of the lane, such as "step 1 gradient fc.weight".
// Shapes: got and want are flat.   Units: begin is the flat index of the first element.
// Errors: std::runtime_error where the file cannot be written.
// Depends on: oracle/tensor_file.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace equigrad::conformance {

struct FirstDifference {
  std::string where;  // empty: none
  int64_t begin = 0;
  at::Tensor got, want;

  // Takes copies, unless there is one already that is as sharp.
  void note(const std::string& at, int64_t first, const at::Tensor& of_engine,
            const at::Tensor& of_twin);
  // Returns the name of the file inside `folder`, which is made if it is missing.
  std::string write(const std::string& folder, int rank) const;
};

}  // namespace equigrad::conformance
