// Mutators: everything that can happen to the data at a seam.
//
// Invariants: a mutator gives a new tensor of the same shape and type, or the one that it was given
// where it cannot change it; it changes no bit of its input.
// Shapes: any.   Errors: none.
// Depends on: ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace equigrad::conformance::faults {

// What the same seam held before, by number of elements.
using Memory = std::map<int64_t, at::Tensor>;

struct Mutator {
  std::string name;  // "rolled"
  std::string what;  // "moved on by one element"
  std::function<at::Tensor(const at::Tensor& values, const at::Tensor& before)> change;
};
const std::vector<Mutator>& mutators();

struct ScalarMutator {
  std::string name, what;
  std::function<double(double)> change;
};
const std::vector<ScalarMutator>& scalar_mutators();

}  // namespace equigrad::conformance::faults
