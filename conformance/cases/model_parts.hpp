// ModelParts: what the networks are made of that several ranks compute together, where one device
// computes all their parts (gated_model.hpp, sequence_model.hpp).
//
// Invariants: a sum of parts is (0 + 1) + (2 + 3) in fp32, rounded once to their type; in fp64 all
// of it is fp64. Values depend on the seed and on the order of the parameters alone.
// Of a sequence's parts gradients are those of one part's own use of a parameter, as its rank has
// them, after take_part(); else of all.
// Shapes: parts have one shape.
// Errors: none of its own.
// Depends on: reference/models/model.hpp; torch's autograd functions in the source. Nothing of the
// engine's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reference/models/model.hpp"

namespace equigrad::conformance {

constexpr int64_t kUncounted = -100;  // a label that does not count

// A model whose passes may be those of one part of a sequence.
class PartwiseModel : public reference::Model {
 public:
  void take_part(int64_t part) { part_ = part; }

 protected:
  // Of a parameter, what part `part` uses; undefined stays so.
  at::Tensor own(const at::Tensor& parameter, int64_t part) const;

 private:
  int64_t part_ = -1;  // all of them
};
// From now on a pass is part `part`'s; other models have none.
void take_part(reference::Model& model, int64_t part);

// A stack of parts that one device computes behind one another. The gradient of each part lies in
// memory of its own, as it does where a rank computes it: a matrix product's bits depend on the
// alignment of its operands.
at::Tensor stack_of_parts(const std::vector<at::Tensor>& parts);

// Not differentiated.
at::Tensor tree_sum(const std::vector<at::Tensor>& parts);
// The same; the gradient of each part is that of the sum.
at::Tensor sum_of_parts(const std::vector<at::Tensor>& parts);

// Matrices with variance 1 / fan in, biases around 0 and gains around 1, none of them exactly that.
void set_values(const reference::Model& model, uint64_t seed);

}  // namespace equigrad::conformance
