// UpdateBound: is an optimizer update right, from the numbers it really had?
//
// The rule is evaluated in fp64 on the actual operands, and beside every value runs a bound on the
// distance of the fp32 computation from it (a running error analysis: Higham, Accuracy and
// Stability of Numerical Algorithms, section 3.3): x is carried as (value, error) with |fp32 x -
// value| <= error, and every operation adds its own rounding. What is stored in 16 bits widens
// exactly, and is rounded to its dtype once more, after the rule.
//
// Invariants: an update whose operations are each rounded once to fp32, in the documented order,
// and
//   each of whose results is rounded once to its dtype, is never reported. Element i depends on
//   element i alone, so a shard may be checked by itself.
// Shapes: every tensor fp32, fp16 or bf16 on the CPU with the same number of elements; what was
//   stored in a dtype before is stored in it after.
// Errors: std::runtime_error for a missing state, sizes or dtypes that do not agree.
// Depends on: bound.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "conformance/oracle/bound.hpp"

namespace equigrad::conformance::oracle {

enum class UpdateRule { AdamW, Adam, Sgd };

struct UpdateSpec {
  UpdateRule rule = UpdateRule::AdamW;
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  int64_t step = 1;  // of this parameter, from 1
};

struct Weights {
  at::Tensor master;
  std::map<std::string, at::Tensor> state;  // exp_avg, exp_avg_sq; momentum_buffer; or none
};

// `gradient` is what the update got (averaged and clipped). Before the first update the states may
// be left out: they are zeros. Covers the master weights and every state.
BoundReport check_update(const UpdateSpec& spec, const Weights& before, const at::Tensor& gradient,
                         const Weights& after);

}  // namespace equigrad::conformance::oracle
