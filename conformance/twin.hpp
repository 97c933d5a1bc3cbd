// Twin: what a correct engine must compute for a case, as one file that its ranks read.
//
//   <order>/<step>/gradient|master|parameter|exp_avg|...|losses/<name>     the twin, bit for bit
//   plain/0/gradient|absolute_sum/<name>       step 1 in the engine's precision, summed exactly
//   precise/0/gradient/<name>                  step 1 in fp32 for bf16 cases, in fp64 for fp32
//
// Invariants: one file serves all stages and styles of a tuple; a gradient that is absent was used
// by nobody. Both orders of addition are there unless they agree (one micro-batch).
// Shapes: those of the parameters; losses [accumulation * world], of all steps, fp32.
// Errors: std::runtime_error for a file that is not a twin; c10::Error from the reference.
// Depends on: recipe.hpp, reference/trainer.hpp, oracle/tensor_file.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "conformance/matrix.hpp"
#include "conformance/oracle/tensor_file.hpp"
#include "reference/trainer.hpp"

namespace equigrad::conformance {

// Runs the reference and writes the file for the tuple of `spec`; its stage and style do not
// matter.
void make_twin(const CaseSpec& spec, uint64_t seed, const reference::Data& data,
               const std::string& path);

// One step of a record under `prefix`, as tensors of a file.
void add_step(oracle::TensorFile& file, const std::string& prefix,
              const reference::StepRecord& record);

class Twin {
 public:
  Twin(const std::string& path, reference::Order order);

  // [numel] flat, or undefined. `what` is gradient, master, parameter or the name of a state.
  at::Tensor tensor(int step, const std::string& what, const std::string& name) const;
  at::Tensor other(const std::string& run, const std::string& what, const std::string& name) const;
  float loss(int step, int64_t index) const;
  double grad_norm(int step) const;
  double threshold() const;  // to clip at; 0: off

 private:
  oracle::TensorFile file_;
  std::string order_;
};

}  // namespace equigrad::conformance
