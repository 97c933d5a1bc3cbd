// Rerun: passes of a case, run once more with weights that the twin has written down.
//
// Invariants: step -1 means the weights that the model was made with, as the model sees them.
// Shapes: contributions have their parameter's shape, flat, fp32, divided by the loss scale.
// Units: steps and micro-batches count from 0.   Errors: those of the reference.
// Depends on: diagnosis.hpp, cases/case_model.hpp, reference.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/cases/case_model.hpp"
#include "conformance/diagnosis/diagnosis.hpp"

namespace equigrad::conformance {

class Rerun {
 public:
  explicit Rerun(const DiagnosisInput& input);

  // The parameter after a step, flat.
  at::Tensor parameter(int step, const std::string& name) const;
  // Runs every pass of every rank in this step.
  void run(int step);
  // What the passes gave, [rank][micro_batch]; empty before run() and for what none used.
  std::vector<std::vector<at::Tensor>> contributions(const std::string& name) const;
  // The loss of a pass if its forward had read other weights, each with what they are.
  std::vector<std::pair<std::string, double>> other_losses(const Site& pass);

 private:
  void set(const std::string& name, const at::Tensor& values);
  void set_all(int step);
  Forward forward(const Pass& pass);
  // Those that the rank began this step with.
  void set_buffers(int step, int rank);
  double loss(const Site& pass);

  const DiagnosisInput& input_;
  std::unique_ptr<CaseModel> model_;
  std::map<std::string, at::Tensor> parameters_, made_;
  std::map<std::string, std::vector<std::vector<at::Tensor>>> contributions_;
};

}  // namespace equigrad::conformance
