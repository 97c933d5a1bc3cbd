// Model: what a race trains: "gpt", the reference's, or "dots", many small parameters p with
// loss = (sum of p . x)^2, where there is next to nothing to compute.
//
//   settings  {"kind": "gpt", "layers", "dim", "heads", "context", "vocabulary"}
//             {"kind": "dots", "count", "width"}
//
// Shapes: batches [batch, context + 1] int64 for gpt, [width] float for dots.
// Errors: std::runtime_error for another kind, std::out_of_range for a missing weight.
// Depends on: reference/models/model.hpp, oracle/tensor_file (sources only).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "reference/models/model.hpp"

namespace equigrad::perf {

class Model {
 public:
  explicit Model(const nlohmann::json& settings);
  explicit Model(std::shared_ptr<reference::Model> gpt) : gpt_(std::move(gpt)) {}

  void read_weights(const std::string& path);
  torch::nn::Module& module();
  std::vector<std::pair<std::string, at::Tensor>> parameters();
  at::Tensor loss(const at::Tensor& batch, at::ScalarType dtype);

 private:
  class Dots;
  std::shared_ptr<reference::Model> gpt_;
  std::shared_ptr<Dots> dots_;
};

}  // namespace equigrad::perf
