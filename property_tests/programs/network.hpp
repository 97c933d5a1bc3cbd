// Network: what a program trains: one small model, or two with an engine each.
//
// A small model has 3 to 8 parameters and fewer than 60 elements, with every kind that is easy to
// get wrong, and the ways through it that a program chooses.
//
//   input [2, w0] -> first -> tanh (+ frozen) -> sin -> second -> y [2, w2]
//   branch 0: y   1: y left   2: y + right   3: y left + right scalar, penalty   4: weights alone
//          5: no parameter at all
//
//   "pair" 0: input -> first
//          1: input -> first -> second, chained     2: input -> first, input -> second, one loss
//
// Invariants: weights and batches depend on the setting alone, a batch on its rank and number too.
// Every forward reaches the second model. What throws is in the first model, but at the top, where
// it is before all parameters of both.
// Shapes: above. "extras" is a set of bits: see kHeads and the others.
// Errors: std::runtime_error("planted ...") from the backward of a pass that is to throw.
// Depends on: script.hpp, reference/models/model.hpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <vector>

#include "property_tests/programs/script.hpp"
#include "reference/models/model.hpp"

namespace equigrad::property_tests::programs {

// Midway: the second layer has its gradients. Late: all parameters have. Top: none has.
enum class Throw { None, Midway, Top, Late };

struct Outcome {
  at::Tensor output, loss;
};

class SmallModel final : public reference::Model {
 public:
  explicit SmallModel(const json& setting);

  // `may_nest`: activation checkpointing by a backward inside of the backward, if it is set.
  Outcome run(const at::Tensor& input, int branch, Throw where = Throw::None, bool may_nest = true);
  const at::Tensor& weight() const { return first_->weight; }
  int64_t width() const { return first_->weight.size(1); }

  at::Tensor output(const reference::Batch& batch) override;
  at::Tensor criterion(const at::Tensor& output, const reference::Batch&) override;

 private:
  at::Tensor through(const at::Tensor& input, int branch, Throw where, bool may_nest);
  at::Tensor apart(const at::Tensor& input, int branch);

  torch::nn::Linear first_{nullptr}, second_{nullptr};
  at::Tensor left_, right_, scalar_, empty_, frozen_;
  bool nests_;
};

// What a forward leaves to differentiate.
struct Kept {
  std::vector<at::Tensor> outputs;
  at::Tensor loss;
};

class Network {
 public:
  explicit Network(const json& setting);

  const std::vector<std::shared_ptr<SmallModel>>& models() const { return models_; }
  const at::Tensor& weight() const { return models_[0]->weight(); }
  Kept run(const at::Tensor& input, int branch, Throw where = Throw::None, bool may_nest = true);

 private:
  int pair_;
  std::vector<std::shared_ptr<SmallModel>> models_;
};

at::ScalarType dtype_of(const json& setting);
at::Tensor batch_of(const json& setting, int rank, int number);
// An uneven gradient for output.backward(gradient); in fp32 for engine.scale(output).
at::Tensor gradient_for(const at::Tensor& output, bool scaled);
// What a setter is given: the same on every rank; a state may not be negative.
at::Tensor value_for(const at::Tensor& like, int number);

}  // namespace equigrad::property_tests::programs
