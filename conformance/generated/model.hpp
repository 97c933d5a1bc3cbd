// GeneratedModel: the model that a workload describes, and its passes, for a twin and for a rank.
//
// The loss is a sum of terms, one for each tensor that takes part (generator/workload.hpp),
// computed in fp32: of a chain of linear layers, the mean of squares behind them; of any other
// tensor p, the mean of sin(p c), with coefficients c of the pass. No term is linear in its
// parameter, so a gradient depends on the weights and on the batch. Before them comes the loss of
// the core, where there is one (core.hpp): whoever makes the model says what it has of that.
//
// Invariants: weights depend on the workload alone, what a pass reads on the workload, step, rank
// and micro-batch alone; torch's generator is not used. What is no dense tensor gets the strides
// that torch::empty_like gives it, as an engine promises; others keep their own.
// Shapes: those of the workload.   Units: steps, ranks and micro-batches count from 0.
// Errors: those of torch for a workload whose roles do not fit its sizes.
// Depends on: generator/workload.hpp, cases/case_model.hpp, reference/models/model.hpp; core.hpp in
// the source.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "conformance/cases/case_model.hpp"
#include "conformance/generator/workload.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {

class GeneratedModel final : public reference::Model {
 public:
  // `is_twins`: with the strides that an engine gives what is not dense. `core`: this rank's part
  // of it; null: the whole one, which computes all parts, if the workload has one.
  GeneratedModel(const Workload& workload, bool is_twins,
                 std::shared_ptr<reference::Model> core = nullptr);

  // Scalar; `dtype` of the coefficients. `after_term` sees the sum as it grows.
  using Watch = std::function<void(const at::Tensor& sum)>;
  at::Tensor loss_of(const Pass& pass, at::ScalarType dtype, const Watch& after_term = {}) const;
  std::vector<reference::GroupSpec> groups() override;
  const std::vector<at::Tensor>& tensors() const { return tensors_; }  // as in the workload
  // By the group of the workload; frozen ones, which are in none, in the first. Tied ones once,
  // under the first name that the module has for them.
  std::vector<std::vector<std::pair<std::string, at::Tensor>>> all_groups() const;

  at::Tensor output(const reference::Batch&) override { return {}; }
  at::Tensor criterion(const at::Tensor&, const reference::Batch&) override { return {}; }

 private:
  void add(const WorkloadTensor& tensor, bool is_twins);
  torch::nn::Module& module_at(const std::string& path);
  void register_as(const std::string& name, const at::Tensor& tensor, bool is_buffer);
  at::Tensor core_term(const Pass& pass) const;
  at::Tensor chain_term(const Pass& pass, at::ScalarType dtype) const;
  at::Tensor term_of(std::size_t index, const Pass& pass, at::ScalarType dtype) const;
  at::Generator batch_of(const Pass& pass, std::size_t index) const;

  const Workload workload_;
  std::shared_ptr<reference::Model> core_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<at::Tensor> tensors_;
};

// How often the graph of a pass is used, and what its loss counts; of the workload's events.
int uses_of(const Workload& workload, const Pass& pass);
bool is_undivided(const Workload& workload, const Pass& pass);

MakeCaseModel generated_case_model(const Workload& workload);

}  // namespace equigrad::conformance
