// Twin: what a correct engine must compute for a case, as one file that its ranks read.
//
//   <order>/<step>/gradient|master|parameter|exp_avg|...|losses/<name>     the twin, bit for bit
//   <order>/<step>  grad_norm, skipped, and loss_scale, that of its passes; for the step after the
//                   last one too
//   <order>         first_applied, a step; -1: none is
//   plain/<first_applied>/gradient|absolute_sum/<name>  in the engine's precision, summed exactly
//   precise/<first_applied>/gradient/<name>             in fp64 for plain fp32, else in fp32
//
// Invariants: one file serves all stages and styles of a tuple; a gradient that is absent was used
// by nobody. Both orders of addition are there unless they agree (one micro-batch), or exact_grid
// alone where sums are exact.
// Shapes: those of the parameters; losses [accumulation * world], of all steps, fp32.
// Errors: std::runtime_error for a file that is not a twin; c10::Error from the reference.
// Depends on: recipe.hpp, reference/trainer.hpp, oracle/tensor_file.hpp, oracle/underflow.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "conformance/cases/matrix.hpp"
#include "conformance/oracle/tensor_file.hpp"
#include "conformance/oracle/underflow.hpp"
#include "reference/trainer.hpp"

namespace equigrad::conformance {

// Runs the reference and writes the file for the tuple of `spec`; its stage and style do not
// matter. Gives what the loss scale loses of the more precise gradient, in precisions that have
// one.
std::optional<oracle::UnderflowLedger> make_twin(const CaseSpec& spec, uint64_t seed,
                                                 const reference::Data& data,
                                                 const std::string& path);

// One step of a record under `prefix`, as tensors of a file.
void add_step(oracle::TensorFile& file, const std::string& prefix,
              const reference::StepRecord& record);

class Twin {
 public:
  Twin(const std::string& path, reference::SumOrder order);

  // [numel] flat, or undefined. `what` is gradient, master, parameter or the name of a state.
  at::Tensor tensor(int step, const std::string& what, const std::string& name) const;
  // Of the first step that is applied.
  at::Tensor other(const std::string& run, const std::string& what, const std::string& name) const;
  float loss(int step, int64_t index) const;
  int first_applied() const;
  double grad_norm(int step) const;
  bool skipped(int step) const;
  double loss_scale(int step) const;  // of its passes; 1 without one
  double threshold() const;           // to clip at; 0: off

 private:
  double number(int step, const std::string& what) const;

  oracle::TensorFile file_;
  std::string order_;
};

}  // namespace equigrad::conformance
