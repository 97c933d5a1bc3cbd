// Network: what a program trains: one small model, or two with an engine each.
//
// A small model has 3 to 8 parameters and fewer than 60 elements, with every kind that is easy to
// get wrong, and the ways through it that a program chooses.
//
//   input [2, w0] -> first -> tanh (+ frozen) -> sin -> second -> y [2, w2]
//   branch 0: y   1: y left   2: y + right   3: y left + right scalar, penalty   4: weights alone
//          5: no parameter at all
//
// On a mesh first is a column of a tensor group and second a row, sin is of the whole sequence, and
// the input's rows are a sequence (parts.hpp); the loss is of all of them.
//
//   "pair" 0: input -> first
//          1: input -> first -> second, chained     2: input -> first, input -> second, one loss
//
// Invariants: weights and batches depend on the setting alone, a batch on its data rank and number
// too.
// Every forward reaches the second model. What throws is in the first model, but at the top, where
// it is before all parameters of both.
// Shapes: above. "extras" is a set of bits: see kHeads and the others.
// Errors: std::runtime_error("planted ...") from the backward of a pass that is to throw.
// Depends on: parts.hpp, script.hpp, reference/models/model.hpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <vector>

#include "property_tests/programs/parts.hpp"
#include "property_tests/programs/script.hpp"
#include "reference/models/model.hpp"

namespace equigrad::property_tests::programs {

// Midway: the second layer has its gradients. Late: all parameters have. Top: none has.
enum class Throw { None, Midway, Top, Late };

struct Outcome {
  Pieces outputs;  // by part of the sequence
  at::Tensor loss;
};

// Whole parameters, or a tensor rank's part of them.
struct TensorRank {
  int64_t rank = 0, size = 1;
};

class SmallModel final : public reference::Model {
 public:
  SmallModel(const json& setting, const TensorRank& of);

  // Of rows by part of the sequence. `may_nest`: activation checkpointing by a backward inside of
  // the backward, if it is set.
  Outcome run(const Parts& parts, const Pieces& input, int branch, Throw where = Throw::None,
              bool may_nest = true);
  const at::Tensor& weight() const { return first_->weight; }
  int64_t width() const { return first_->weight.size(1); }

  at::Tensor output(const reference::Batch& batch) override;
  at::Tensor criterion(const at::Tensor& output, const reference::Batch&) override;

 private:
  void take_part(const TensorRank& of);
  Pieces through(const Parts& parts, const Pieces& input, int branch, Throw where, bool may_nest);
  at::Tensor behind(const Parts& parts, at::Tensor y, int branch, std::size_t part) const;
  at::Tensor apart(const Parts& parts, const at::Tensor& input, int branch) const;

  torch::nn::Linear first_{nullptr}, second_{nullptr};
  at::Tensor left_, right_, scalar_, empty_, frozen_;
  int64_t numel_ = 0;  // of the first weight, whole
  bool nests_;
};

// What a forward leaves to differentiate.
struct Kept {
  std::vector<at::Tensor> outputs;
  at::Tensor loss;
};

class Network {
 public:
  explicit Network(const json& setting, const TensorRank& of = {});

  const std::vector<std::shared_ptr<SmallModel>>& models() const { return models_; }
  const at::Tensor& weight() const { return models_[0]->weight(); }
  Kept run(const Parts& parts, const at::Tensor& input, int branch, Throw where = Throw::None,
           bool may_nest = true);

 private:
  int pair_;
  std::vector<std::shared_ptr<SmallModel>> models_;
};

at::ScalarType dtype_of(const json& setting);
at::Tensor batch_of(const json& setting, int data_rank, int number);
// Of a whole parameter's values, a tensor rank's.
at::Tensor part_of(const std::string& name, const at::Tensor& whole, const TensorRank& of);
// Of the whole parameter, of which a tensor rank has a part of these sizes.
std::vector<int64_t> whole_sizes(const std::string& name, at::IntArrayRef part,
                                 const TensorRank& of);
// An uneven gradient for output.backward(gradient); in fp32 for engine.scale(output).
at::Tensor gradient_for(const at::Tensor& output, bool scaled);
// What a call writes: the same on every rank; a state may not be negative, and one element of a
// gradient may be infinite.
at::Tensor value_for(const at::Tensor& like, const json& call);

}  // namespace equigrad::property_tests::programs
