// ProbeNetwork: the smallest networks in which every relation can be violated.
//
//   0 tanh layer, linear layer   1 a convolution in front instead   2 an embedding in front
//   3 lattice: small whole numbers, relu, a loss that is linear in the output
//   4 linear: output = input first^T, and a loss that is linear in it
//   beside them: beside [3], a loss of its own; unused [4]; frozen [3]; empty [0]
//
// Invariants: weights depend on the seed alone, a batch on (step, rank, micro-batch) too.
// Shapes: output [rows, 3].   Errors: none.
// Depends on: setting.hpp, engine/api/engine_types.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/engine_types.hpp"
#include "property_tests/relations/setting.hpp"

namespace equigrad::property_tests::relations {

constexpr int kMlp = 0, kConv = 1, kEmbedding = 2, kLattice = 3, kLinear = 4;

struct Source {  // of a batch
  int step = 0, rank = 0, micro = 0;
};

class ProbeNetwork {
 public:
  std::vector<NamedParameter> parameters;
  mutable float least = INFINITY;  // magnitude of a gradient of any node that is not zero

  explicit ProbeNetwork(const json& one, bool reversed = false);

  const at::Tensor& operator[](const std::string& name) const;
  at::Tensor input(const Source& from, at::ScalarType dtype) const;
  at::Tensor target(const Source& from) const;
  at::Tensor output(const at::Tensor& input, bool checkpointed = false) const;
  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const;
  at::Tensor beside_loss() const;

 private:
  at::Tensor hidden(const at::Tensor& input) const;
  at::Tensor watched(const at::Tensor& node) const;
  at::Tensor add(const std::string& name, const std::vector<int64_t>& shape);

  int kind_;
  uint64_t seed_;
  int64_t rows_;
};

}  // namespace equigrad::property_tests::relations
