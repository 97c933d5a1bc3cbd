// CaseModel: a model with its batches, one pass at a time: what a twin trains, and what an
// explanation runs again.
//
// Invariants: equal passes of equal weights and buffers give equal numbers. Every rank has buffers
// of its own, which its passes alone change.
// Shapes: those of the model.   Units: steps, ranks and micro-batches count from 0.
// Errors: those of the model.
// Depends on: matrix.hpp, reference/stepper.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "conformance/cases/matrix.hpp"
#include "reference/stepper.hpp"

namespace equigrad::conformance {

struct Pass {
  int step = 0;
  int rank = 0;  // of those that ZeRO shards over: data * S + sequence
  int micro_batch = 0;
  bool operator==(const Pass&) const = default;
};

// What a backward pass begins with.
struct Forward {
  at::Tensor output;
  at::Tensor gradient = {};  // of the output; undefined: the output is the loss
  int uses = 1;              // backward passes through this graph, each of which counts
  double weight = 1;         // of each; the accumulation steps where it is not divided by them

  // [1], fp32, detached: the loss, or sum(output gradient) in its place.
  at::Tensor loss() const;
};

// The backward pass of `forward` times the loss scale, by plain autograd.
void plain_backward(const Forward& forward, double loss_scale, bool retain_graph = false);

class CaseModel {
 public:
  virtual ~CaseModel() = default;
  // The parameters, as they were made: fp32. Who trains them converts them in place.
  virtual std::shared_ptr<reference::Model> model() = 0;
  // Floats of the batch in this dtype. Autocast is the caller's.
  virtual Forward forward(const Pass& pass, at::ScalarType dtype) = 0;
  // Copies of what this rank's buffers hold now.
  virtual reference::TensorMap buffers(int rank);
  virtual void set_buffers(int rank, const reference::TensorMap& values);
};

using MakeCaseModel = std::function<std::unique_ptr<CaseModel>()>;

// A model of the zoo on its own data, which must outlive it; one of its losses may overflow.
MakeCaseModel zoo_model(const CaseSpec& spec, uint64_t seed, const reference::Data& data);

}  // namespace equigrad::conformance
