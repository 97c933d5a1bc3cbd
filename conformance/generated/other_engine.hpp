// OtherEngine: an engine of its own on the communicator of a generated case, whose weights are
// known without a reference: SGD at rate 1 takes the sum of its gradients, small whole numbers,
// from zeros.
//
//   other.step();                                            // a pass and a step of its own
//   engine.backward(loss + other.term()); other.take(uses);  // or under another's loss
//
// Invariants: every call is the same on every rank.   Shapes: three weights; a term is a scalar.
// Errors: whatever the engine throws; HarmlessEventFailed where its weights are others.
// Depends on: engine/engine.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <stdexcept>

#include "engine/engine.hpp"

namespace equigrad::conformance {

class HarmlessEventFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class OtherEngine {
 public:
  OtherEngine(std::shared_ptr<comm::Communicator> group, int stage);

  at::Tensor term() const;
  // The step after passes that used the term so often.
  void take(int uses);
  void step();

 private:
  at::Tensor weight_, want_;
  int ranks_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace equigrad::conformance
