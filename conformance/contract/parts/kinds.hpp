// Kinds: a model that has every kind of a parameter, for engines that a program makes beside.
//
// Invariants: no two elements of a parameter are equal; `shift` is added to all that are floats.
// Shapes: matrix [5, 3], tail [7], also named tied, one [1], scalar [], empty [0], turned [3, 4] in
// the order of its columns; not trained are frozen [3] and counts [2], whole numbers.
// Errors: none.   Depends on: LibTorch.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>

namespace equigrad::conformance::contract {

// Values that no two elements share.
inline at::Tensor held_values(at::IntArrayRef sizes, double shift) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat)
      .mul_(0.5)
      .add_(shift)
      .view(sizes)
      .clone();
}

struct Kinds : torch::nn::Module {
  explicit Kinds(double shift) : torch::nn::Module("Kinds") {
    register_parameter("matrix", held_values({5, 3}, shift));
    const auto tail = register_parameter("tail", held_values({7}, shift + 10));
    register_parameter("one", held_values({1}, shift + 20));
    register_parameter("scalar", held_values({}, shift + 30));
    register_parameter("empty", held_values({0}, shift));
    register_parameter("turned",
                       at::empty_strided({3, 4}, {1, 3}).copy_(held_values({3, 4}, shift + 40)));
    register_parameter("tied", tail);
    register_parameter("frozen", held_values({3}, shift + 50), /*requires_grad=*/false);
    register_parameter("counts", at::arange(2, at::kLong), /*requires_grad=*/false);
  }
  at::Tensor of(const std::string& name) const { return named_parameters()[name]; }
  // Every trained parameter's gradient is `factor`.
  at::Tensor loss(double factor) const {
    at::Tensor sum = at::zeros({});
    for (const char* name : {"matrix", "tail", "one", "scalar", "empty", "turned"})
      sum = sum + (of(name) * factor).sum();
    return sum;
  }
};

inline int64_t slice_numel(int64_t numel, int shards) { return (numel + shards - 1) / shards; }

// Without asking for it, which may be an error.
inline bool has_data(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

}  // namespace equigrad::conformance::contract
