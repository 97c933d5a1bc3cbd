// Model: the networks of the zoo, each an ordinary torch::nn::Module with a loss.
//
//   gpt     a byte-level GPT: 2 layers, dim 24, 2 heads, context 16; nothing tied
//   irregular  odd sizes, one tensor under two names, a module used twice, a branch that nobody
//           uses, a branch that some batches use, a frozen, an empty and a 0-dim parameter, two
//           groups, a loss term straight on the parameters
//   vision  patches to embeddings [2, 16, 24]; the criterion is a weighted quadratic and a cosine
//   conv    two strided convolutions and a linear layer, for 10 classes of images
//
// Invariants: loss(batch) = criterion(output(batch), batch) + penalty(). Parameters are fp32 and
//   depend on (name, seed) only, not on a global generator. Losses are computed in fp32, or in
//   fp64 when the output is. No loss is linear in the output.
// Shapes: those of data.hpp.   Errors: c10::Error for an unknown name.
// Depends on: torch::nn, data.hpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/models/data.hpp"

namespace equigrad::reference {

// What losses and sums are computed in: fp64 stays, all else becomes fp32. A tensor that is so
// already is returned itself.
at::Tensor widen(const at::Tensor& x);

// Parameters which share settings; what is not set is the optimizer's own.
struct GroupSpec {
  std::vector<std::string> names;
  std::optional<double> lr;
  std::optional<double> weight_decay;
};

class Model : public torch::nn::Module {
 public:
  Model() = default;
  // Of a class with this name, as torch::nn::Module::name() tells it.
  explicit Model(const std::string& type) : torch::nn::Module(type) {}

  virtual at::Tensor output(const Batch& batch) = 0;
  // Scalar, from the output and the targets alone.
  virtual at::Tensor criterion(const at::Tensor& output, const Batch& batch) = 0;
  // Scalar, from the parameters alone; undefined when the model has none.
  virtual at::Tensor penalty() { return {}; }
  // Every trainable parameter in exactly one group. Default: all of them in one.
  virtual std::vector<GroupSpec> groups();

  at::Tensor loss(const Batch& batch);
};

// Every parameter once, in registration order, under the first name it was registered with.
// (Module::named_parameters() lists a tied tensor once per name.)
std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module);

// The names make_model knows.
const std::vector<std::string>& model_names();
std::shared_ptr<Model> make_model(const std::string& name, uint64_t seed);

// The defaults are the size to train on text: 391,008 parameters.
struct GptOptions {
  int64_t layers = 3;
  int64_t dim = 96;
  int64_t heads = 4;
  int64_t context = 64;
  int64_t vocabulary = 256;  // bytes
};
std::shared_ptr<Model> make_gpt(const GptOptions& options, uint64_t seed);

}  // namespace equigrad::reference
